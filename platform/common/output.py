"""Prints progress and warnings, which are not results, on standard error, and says how wide results may be."""

import contextlib
import os
import re
import sys
import textwrap

_COMMAND = re.compile(r"(?:python -m|make) [^;,()]*[^;,() ]")
_BLANK = "\0"
"""Stands for a blank at which a line is not broken."""


def print_line(text: str) -> None:
    """Prints one line on standard error, broken between words in a terminal; standard output is for results."""
    print(wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def wrapped(text: str) -> str:
    """Returns the text with its lines broken between words to the terminal's width, the same where there is none."""
    width = terminal_width(0)
    return "\n".join(filled(line, width, indent="  ") for line in text.splitlines()) if width else text


def filled(sentence: str, width: int, *, indent: str = "") -> str:
    """Returns a sentence in lines of `width` at most, later ones with `indent`; a command in it stays on one line, as
    it is copied.
    """
    text = _COMMAND.sub(lambda command: command[0].replace(" ", _BLANK), sentence)
    lines = textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace(_BLANK, " ")


def terminal_width(otherwise: int) -> int:
    """Returns COLUMNS, else the width of the terminal that a standard stream is, `otherwise` where none is one."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    for stream in (1, 2, 0):  # a pager's input is no terminal, and its errors go to one
        with contextlib.suppress(OSError):
            return os.get_terminal_size(stream).columns or otherwise
    return otherwise
