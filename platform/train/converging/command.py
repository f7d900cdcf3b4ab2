"""Trains strategies on the same tokens and compares their loss.

    python -m platform.converge gpt2-1 optimizer=adafactor grad_accum=256 --data tokens --steps 2000 --seeds 3
    python -m platform.converge fsdp.json engine=deepspeed,zero_stage=2 engine=ddp,optimizer=adafactor grad_accum=256 \\
        --data tokens --steps 5000

CHANGES are axes with values, as in `--set` of a search, applied to the first study or layout file. Each strategy has a
learning rate of its own: the one that it states, else the best of some short trainings. The same command resumes a
comparison that was ended.
Exit codes: 0 compared, 2 bad input, 3 the cluster is at fault, 130 interrupted.
"""

from collections.abc import Sequence

from platform.common.command import exit_code_of_resumable
from platform.common.options import CommandParser
from platform.train.converging.converge_options import ConvergeOptions

PARSER = CommandParser(ConvergeOptions, prog="python -m platform.converge", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of_resumable(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = PARSER.read(argv)
    from platform.train.converging import comparison_session  # what `--help` need not wait for

    return comparison_session.converge(options)
