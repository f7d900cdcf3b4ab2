"""Errors that end a command with a sentence in place of a traceback."""


class InputError(ValueError):
    """A user's mistake: its text is one sentence, what is wrong and what to do. Commands end with exit code 2."""

    exit_code = 2
