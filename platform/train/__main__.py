"""Trains the winner of a search, or the layout of a file.

    python -m platform.train gpt2-1 --data tokens --tokens 2e9
    python -m platform.train layout.json --data tokens --tokens 2e9 --lr-schedule wsd --out runs/first

The same command resumes a training that was ended, also with another layout, engine or number of devices: give its
layout.json and the same --out.
Exit codes: 0 trained, 2 bad input, 3 the cluster is at fault, 130 interrupted.
"""

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from platform.common.command import exit_code_of_resumable
from platform.common.errors import Parser
from platform.common.quantities import duration, positive, whole_number
from platform.common.signals import exit_with
from platform.study.folder import FOLDER_HELP, TRUST_HELP, default_folder, user_path
from platform.train.train_options import PhaseOption, TrainOptions
from trainers.records.training import ScheduleKind
from trainers.spec.recipe import DataOrder

_count, _whole_count = whole_number(1), whole_number(0)


def parser() -> argparse.ArgumentParser:
    """Returns the command's parser."""
    command_parser = Parser(
        prog="python -m platform.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = command_parser.add_argument
    add("target", metavar="STUDY|FILE", help="a study whose winner is trained, or a layout.json")
    add("--tokens", type=_count, required=True, metavar="N", help="tokens to train on, as in 2e9 or 2B")
    add("--data", metavar="PATH", help="token files that platform.prepare made (default: the recipe's data)")
    add("--data-order", choices=get_args(DataOrder), help="of an epoch's sequences (default: the recipe's)")
    add("--out", type=Path, metavar="FOLDER", help="the training's folder (default: `training` beside the layout)")
    add("--recipe", metavar="ID", help="which recipe of a study with several (default: the first with a winner)")
    add("--learning-rate", type=positive, metavar="R", help="the highest learning rate (default: the recipe's)")
    add("--lr-schedule", choices=get_args(ScheduleKind), default="cosine", help="learning rate after the warm-up:"
        " constant, half a cosine, or wsd (stable, then a linear decay) (default: %(default)s)")  # fmt: skip
    add("--warmup-tokens", type=_whole_count, metavar="N", help="of a linear warm-up (default: 1 %% of --tokens)")
    add("--decay-tokens", type=_count, metavar="N", help="of wsd's decay at the end (default: 20 %% of --tokens)")
    add("--final-share", type=_share, metavar="F", help="share of the learning rate at the end (default: 0.1 for"
        " cosine, 0 for wsd)")  # fmt: skip
    add("--val-tokens", type=_whole_count, metavar="N", help="tokens at the end of the data that are held out, 0 for"
        " none (default: 5 %%, at most a million)")  # fmt: skip
    add("--val-data", metavar="PATH", help="held-out data of its own")
    add("--val-every", type=_count, metavar="N", help="tokens between two held-out losses (default: 20 in a training)")
    add("--phase", type=_phase, action="append", default=[], metavar="TOKENS:GLOBAL_BATCH[:FILE]", help="a first phase"
        " with a batch, and a layout, of its own; may be given several times")  # fmt: skip
    add("--start-from", metavar="FOLDER", help="begin with the weights of a transformers folder")
    add("--verify-data", action="store_true", help="compare all token files with their hashes"
        " (default: sizes, times and 16 blocks)")  # fmt: skip
    add("--seed", type=_whole_count, metavar="N", help="of weights and of the data's order (default: the recipe's)")
    add("--checkpoint-s", type=duration, default=600.0, metavar="S", help="seconds (or 10m) between checkpoints"
        " (default: %(default)g)")  # fmt: skip
    add("--checkpoint-steps", type=_count, metavar="N", help="optimizer steps between checkpoints, in place of seconds")
    add("--keep", type=_count, default=2, metavar="N", help="checkpoints to keep (default: %(default)s)")
    add("--grace", type=duration, metavar="T", help="seconds (or 10m) from interrupt to kill: no longer checkpoint"
        " begins (default: no limit)")  # fmt: skip
    add("--studies", default=default_folder(), metavar="DIR", help=FOLDER_HELP)
    add("--address", metavar="HOST:PORT", help='Ray to run on, "local" for one of its own')
    add("--trust", action="store_true", help=TRUST_HELP)
    add("--json", action="store_true", help="print the result as JSON, alone on standard output")
    return command_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code_of_resumable(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = parse(argv)
    from platform.train import training_session  # what `--help` need not wait for

    return training_session.train(options)


def parse(argv: Sequence[str] | None = None) -> TrainOptions:
    """Returns the options of these arguments.

    Raises:
        InputError: an argument is unknown, or a value is not one.
    """
    values = vars(parser().parse_args(argv))
    values["phases"] = tuple(values.pop("phase"))
    values["studies"] = user_path(values["studies"]).absolute()
    return TrainOptions(**values)


def _share(text: str) -> float:
    with contextlib.suppress(ValueError):
        value = float(text)
        if 0 <= value <= 1:
            return value
    raise argparse.ArgumentTypeError(f"must lie in [0, 1], got {text!r}")


def _phase(text: str) -> PhaseOption:
    tokens, _, batch_text = text.partition(":")
    batch, _, layout = batch_text.partition(":")
    return PhaseOption(tokens=_count(tokens), global_batch=_count(batch), layout=Path(layout) if layout else None)


if __name__ == "__main__":
    exit_with(main)
