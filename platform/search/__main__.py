"""Measures which layout trains the space's model fastest on this cluster, or which values of a command's holes do.

Exit codes: 0 found, 1 nothing fits in memory (or --safe refuses the winner), 2 bad input, 3 the cluster is at fault, 4
not resolved (the machine was disturbed and no winner is named; --resume runs the contenders again), 130 interrupted and
resumable.
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence

import search_spaces
from platform.common.command import exit_code_of
from platform.common.errors import InputError
from platform.common.options import CommandParser
from platform.common.progress import Progress
from platform.common.signals import exit_with
from platform.search.setup.options import SearchOptions, with_command
from platform.search.setup.training_file import with_training_file

PARSER = CommandParser(
    SearchOptions,
    prog="python -m platform.search",
    description="Measures which training layout of a model is the fastest on this cluster, or which values of the"
    " holes in a command behind -- (docs/your-training.md).",
    epilog="Exit codes: 0 found, 1 nothing fits in memory or --safe refuses the winner, 2 bad input, 3 the cluster is"
    " at fault, 4 not resolved which layout is the fastest, 130 interrupted. Example:"
    " python -m platform.search bloom7b --set seq_len=1024",
)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = _read(sys.argv[1:] if argv is None else argv)
    if options.list:
        spaces = search_spaces.built_in_spaces()
        width = max(len(space.name) for space in spaces)
        columns = shutil.get_terminal_size(fallback=(1000, 24)).columns
        for space in spaces:
            print(textwrap.fill(f"{space.name:{width}}  {space.summary}", columns, subsequent_indent=(width + 2) * " "))
        return 0
    with Progress("loading the search"):
        # This import takes a second (ten on a busy machine), which `--list` and `--help` skip.
        from platform.search.session import open_study, session, several

    options = open_study.with_resumption(options.located())
    return several.search(options) if several.is_asked(options) else session.search(options)


def _read(argv: Sequence[str]) -> SearchOptions:
    """Returns the parsed options; the words after `--` are a user's command."""
    end = argv.index("--") if "--" in argv else len(argv)
    if end == len(argv) - 1:
        raise InputError("behind -- stands the command to search, as in -- torchrun train.py, got nothing")
    return with_command(with_training_file(PARSER.read(argv[:end])), argv[end + 1 :])


def parse(argv: Sequence[str]) -> SearchOptions:
    """Returns the parsed options.

    Raises:
        InputError: an argument is unknown or a value is invalid.
    """
    return _read(argv).located()


if __name__ == "__main__":
    exit_with(main)
