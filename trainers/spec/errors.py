"""A user's mistakes, each one sentence, on every floor."""


class InputError(ValueError):
    """A user's mistake: its text is one sentence, what is wrong and what to do. Commands end with exit code 2."""

    exit_code = 2


class MissingFileError(InputError):
    """There is no file of that path."""
