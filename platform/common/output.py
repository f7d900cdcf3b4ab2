"""Prints progress and warnings, which are not results, on standard error, and says how wide results may be."""

import contextlib
import os
import sys
import textwrap


def print_line(text: str) -> None:
    """Prints one line on standard error, broken between words in a terminal; standard output is for results."""
    print(wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def wrapped(text: str) -> str:
    """Returns the text with its lines broken between words to the terminal's width, the same where there is none."""
    width = terminal_width(0)
    lines = text.splitlines() if width else []
    broken = [
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join(broken) if width else text


def terminal_width(otherwise: int) -> int:
    """Returns COLUMNS, else the width of the terminal that a standard stream is, `otherwise` where none is one."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    for stream in (1, 2, 0):  # a pager's input is no terminal, and its errors go to one
        with contextlib.suppress(OSError):
            return os.get_terminal_size(stream).columns or otherwise
    return otherwise
