"""Errors that end a command with a sentence in place of a traceback."""


class InputError(ValueError):
    """A user's mistake: its text is one sentence, what is wrong and what to do. Commands end with exit code 2."""

    exit_code = 2


class ClusterError(RuntimeError):
    """The cluster is at fault, not the input: its text says what it did. Commands end with exit code 3."""

    exit_code = 3


def one_line(error: Exception) -> str:
    """The error's text on one line: what a library or a user's file raised may have several."""
    return " ".join(str(error).split())
