"""Errors for a user's mistakes, shared by all packages; each text is one sentence."""


class InputError(ValueError):
    """A user's mistake. The text is one sentence: the mistake and its remedy. Commands end with exit code 2."""

    exit_code = 2


class MissingFileError(InputError):
    """No file has the given path."""
