"""Trains strategies on the same tokens and compares their loss.

    python -m platform.converge gpt2-1 optimizer=adafactor grad_accum=256 --data tokens --steps 2000 --seeds 3
    python -m platform.converge fsdp.json engine=deepspeed,zero_stage=2 engine=ddp,optimizer=adafactor grad_accum=256 \\
        --data tokens --steps 5000

CHANGES are axes with values, as in `--set` of a search, applied to the first study or layout file. Each strategy has a
learning rate of its own: the one that it states, else the best of some short trainings. The same command resumes a
comparison that was ended.
Exit codes: 0 compared, 2 bad input, 3 the cluster is at fault, 130 interrupted.
"""

import argparse
from collections.abc import Sequence

from platform.common.command import exit_code_of_resumable
from platform.common.errors import Parser
from platform.common.quantities import whole_number
from platform.report.image_formats import FORMATS, PICTURES_HELP
from platform.study.folder import FOLDER_HELP, TRUST_HELP, default_folder, user_path
from platform.train.converging.converge_options import ConvergeOptions

_count, _whole_count = whole_number(1), whole_number(0)


def parser() -> argparse.ArgumentParser:
    """Returns the command's parser."""
    command_parser = Parser(
        prog="python -m platform.converge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = command_parser.add_argument
    add("targets", nargs="+", metavar="STUDY|FILE|CHANGES", help="a study whose winner is trained, a layout.json, or"
        " changes to the first of these, as in optimizer=adafactor,learning_rate=1e-3")  # fmt: skip
    add("--steps", type=_count, required=True, metavar="N", help="optimizer steps of the first strategy; the"
        " others train on as many tokens")  # fmt: skip
    add("--data", metavar="PATH", help="token files that platform.prepare made (default: the recipe's data)")
    add("--seeds", type=_count, default=1, metavar="K", help="trainings of each strategy (default: %(default)s);"
        " intervals take 2 at the least")  # fmt: skip
    add("--rates", type=_whole_count, default=5, metavar="N", help="learning rates tried at most, by short"
        " trainings, for each recipe that states none; 0 takes the first's by the square root of the batch (default:"
        " %(default)s)")  # fmt: skip
    add("--val-tokens", type=_count, metavar="N", help="tokens at the end of the data that are held out (default:"
        " 5 %%, at most a million)")  # fmt: skip
    add("--out", metavar="FOLDER", help="the comparison's folder (default: `convergence` beside the first layout)")
    add("--studies", default=default_folder(), metavar="DIR", help=FOLDER_HELP)
    add("--address", metavar="HOST:PORT", help='Ray to run on, "local" for one of its own')
    add("--pictures", choices=FORMATS, default=FORMATS[0], metavar="FORMAT", help=PICTURES_HELP)
    add("--trust", action="store_true", help=TRUST_HELP)
    add("--json", action="store_true", help="print the result as JSON, alone on standard output")
    return command_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code_of_resumable(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = parse(argv)
    from platform.train.converging import comparison_session  # what `--help` need not wait for

    return comparison_session.converge(options)


def parse(argv: Sequence[str] | None = None) -> ConvergeOptions:
    """Returns the options of these arguments.

    Raises:
        InputError: an argument is unknown, or a value is not one.
    """
    values = vars(parser().parse_args(argv))
    values["targets"] = tuple(values["targets"])
    values["studies"] = user_path(values["studies"]).absolute()
    values["out"] = values["out"] and user_path(values["out"]).absolute()
    return ConvergeOptions(**values)
