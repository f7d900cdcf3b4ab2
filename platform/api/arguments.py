"""Converts the options of a call to a command's arguments, so that the same code parses and checks both."""

from collections.abc import Iterator, Mapping
from typing import Any

_REPEATED = ("--cluster", "--price", "--set")
"""Options that are repeated for each item of a list."""


def arguments(*positional: Any, **options: Any) -> list[str]:
    """Returns a command's arguments.

    A mapping becomes repeated `KEY=VALUE`, as for `set`; a list of one axis' values is joined by commas; None and False
    leave an option out.
    """
    words = [str(value) for value in positional]
    for name, value in options.items():
        words += _option("--" + name.replace("_", "-"), value)
    return words


def _option(option: str, value: Any) -> Iterator[str]:
    if value is None or value is False:
        return
    if value is True:
        yield option
    elif isinstance(value, Mapping):
        for key, item in value.items():  # type: ignore[reportUnknownVariableType]
            yield from (option, f"{key}={_joined(item)}")
    elif option in _REPEATED and isinstance(value, list | tuple):
        for item in value:  # type: ignore[reportUnknownVariableType]
            yield from (option, str(item))  # type: ignore[reportUnknownArgumentType]
    else:
        yield f"{option}={_joined(value)}"


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)  # type: ignore[reportUnknownArgumentType]
