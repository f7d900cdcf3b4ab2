"""Trains the winner of a search, or the layout of a file.

    python -m platform.train gpt2-1 --data tokens --tokens 2e9
    python -m platform.train layout.json --data tokens --tokens 2e9 --lr-schedule wsd --out runs/first

The same command resumes a training that was ended, also with another layout, engine or number of devices: give its
layout.json and the same --out.
Exit codes: 0 trained, 2 bad input, 3 the cluster is at fault, 130 interrupted.
"""

from collections.abc import Sequence

from platform.common.command import exit_code_of_resumable
from platform.common.options import CommandParser
from platform.common.progress import Progress
from platform.common.signals import exit_with
from platform.train.train_options import TrainOptions

PARSER = CommandParser(TrainOptions, prog="python -m platform.train", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of_resumable(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = PARSER.read(argv)
    with Progress("loading the training"):
        from platform.train import training_session  # what `--help` need not wait for

    return training_session.train(options)


if __name__ == "__main__":
    exit_with(main)
