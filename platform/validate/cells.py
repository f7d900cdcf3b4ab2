"""Reads the fields of a measured table's row as numbers and words."""

from collections.abc import Mapping, Sequence

Row = Mapping[str, str]

_LARGEST = 1e9
"""Upper limit of a table's counts, sizes, times and rates; the inverse is the lower limit of positive numbers."""


def number(row: Row, name: str) -> float | None:
    """Returns the number in column `name`; None if it is empty.

    Raises:
        ValueError: the text is not a number, or no run can have this number.
    """
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {_short(text)}, not a number") from None
    # Products of several such numbers stay well within the range of a float.
    if not 0 <= value <= _LARGEST or 0 < value < 1 / _LARGEST:
        raise ValueError(f"{name} is {_short(text)}, not a number from 0 to {_LARGEST:g}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def whole_number(row: Row, name: str) -> int | None:
    """Returns the number of `number`, which must be whole."""
    value = number(row, name)
    if value is not None and value % 1:
        raise ValueError(f"{name} is {value:g}, not a whole number")
    return None if value is None else int(value)


def positive_number(row: Row, name: str) -> int:
    """Returns the number of `whole_number`, which must be stated and at least 1."""
    value = whole_number(row, name)
    if value is None:
        raise ValueError(f"{name} not stated")
    if value < 1:
        raise ValueError(f"{name} is {value}, below 1")
    return value


def within_node(row: Row) -> bool:
    """Returns whether the run used one node; without a stated number of nodes, a node has 8 devices."""
    return (number(row, "nodes") or (number(row, "gpus") or 0) / 8) <= 1


def choice(row: Row, name: str, choices: Sequence[str], default: str = "") -> str:
    """Returns the word in column `name`; `default` if it is empty.

    Raises:
        ValueError: the word is not one of `choices`.
    """
    word = row.get(name) or default
    if word and word not in choices:
        raise ValueError(f"{name} {word!r} is not one of {', '.join(choices)}")
    return word
