"""Prints progress and warnings, which are not results, on standard error."""

import sys


def print_line(text: str) -> None:
    """Prints one line on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)
