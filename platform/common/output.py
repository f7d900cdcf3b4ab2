"""Prints progress and warnings on standard error, and gives the terminal's width."""

import contextlib
import os
import re
import sys
import textwrap

from platform.common.copies import with_addresses

_COMMAND = re.compile(r"(?:python -m|make) [^;,()]*[^;,() ]")
_BLANK = "\0"
"""Placeholder for a blank at which no line may be broken."""


def print_line(text: str) -> None:
    """Prints one line on standard error, wrapped to the width of a terminal; copies are named by their addresses."""
    text = with_addresses(text)
    print(wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def wrapped(text: str) -> str:
    """Returns the text with lines wrapped to the terminal's width; unchanged if there is no terminal."""
    width = terminal_width(0)
    return "\n".join(filled(line, width, indent="  ") for line in text.splitlines()) if width else text


def filled(sentence: str, width: int, *, indent: str = "") -> str:
    """Returns a sentence wrapped to `width`, later lines indented; a command in it stays on one line, to be copied."""
    text = _COMMAND.sub(lambda command: command[0].replace(" ", _BLANK), sentence)
    lines = textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace(_BLANK, " ")


def terminal_width(otherwise: int) -> int:
    """Returns COLUMNS if set, else the width of the first standard stream that is a terminal, else `otherwise`."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    for stream in (1, 2, 0):  # with a pager, standard input and output may be no terminal while standard error is one
        with contextlib.suppress(OSError):
            return os.get_terminal_size(stream).columns or otherwise
    return otherwise
