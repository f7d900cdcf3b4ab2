"""`python -m platform.export TRAINING --out FOLDER`: a training's newest checkpoint as a transformers folder.

    python -m platform.export studies/gpt2-1/training --out model
    AutoModelForCausalLM.from_pretrained("model")

Exit codes: 0, 2 bad input.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError, Parser, one_line
from platform.common.say import say
from platform.common.signals import exit_with
from platform.training.folder import TrainingFolder


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = Parser(
        prog="python -m platform.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("training", metavar="TRAINING", type=Path, help="the folder of a training (platform.train's --out)")
    add("--out", type=Path, required=True, metavar="FOLDER", help="the folder to write; it must not exist, or be empty")
    add("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the weights (default: %(default)s)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    try:
        options = parser().parse_args(argv)
        folder, out = TrainingFolder(options.training.expanduser().absolute()), options.out.expanduser().absolute()
        plan, newest = folder.plan(), folder.newest_checkpoint()
        if plan is None or newest is None:
            raise InputError(f"{folder.path} holds no checkpoint of a training: give platform.train's --out")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} is there already: give --out a new folder")
        from trainers.training.export import export  # imports torch

        export(newest, plan.recipe, out, dtype=options.dtype)
    except InputError as error:
        say(f"error: {one_line(error)}")
        return InputError.exit_code
    say(f"{out} holds the model of {newest.name}: AutoModelForCausalLM.from_pretrained({str(out)!r})")
    return 0


if __name__ == "__main__":
    exit_with(main)
