"""Errors that commands print as one sentence, and their exit codes."""

import argparse
from typing import Any, NoReturn

from trainers.spec.codec import printable
from trainers.spec.errors import InputError as InputError

NOT_RESOLVED = 4
"""Exit code if other load on the machine leaves open which of several layouts is the fastest."""


class NothingFits(InputError):
    """None of the requested layouts fits in a device's memory. Commands end with exit code 1."""

    exit_code = 1


class ClusterError(RuntimeError):
    """A fault of the cluster and not of the input; the text states what happened. Commands end with exit code 3."""

    exit_code = 3


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `InputError` with one sentence on a wrong option and does not print the usage.

    Options cannot be abbreviated, because a prefix that is unique today may be ambiguous tomorrow.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += "; one that begins with - is written --OPTION=VALUE"
        raise InputError(f"{message} (--help lists the options)")


def one_line(error: Exception | str) -> str:
    """Returns the text on one line, without control characters."""
    return printable(" ".join(str(error).split()))
