"""Errors that end a command with a sentence in place of a traceback."""


class InputError(ValueError):
    """A user's mistake: its text is one sentence, what is wrong and what to do. Commands end with exit code 2."""

    exit_code = 2


class ClusterError(RuntimeError):
    """The cluster is at fault, not the input: its text says what it did. Commands end with exit code 3."""

    exit_code = 3
