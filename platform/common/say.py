"""The one way to print what is not a result."""

import sys


def say(text: str) -> None:
    """Prints one line on standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)
