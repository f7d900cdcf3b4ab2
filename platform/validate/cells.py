"""The cells of a measured table's row as numbers and words."""

from collections.abc import Mapping, Sequence

Row = Mapping[str, str]

_LARGEST = 1e9
"""Upper limit of a table's counts, sizes, times and rates; its inverse is their lower limit above 0."""


def number(row: Row, name: str) -> float | None:
    """Returns the number in column `name`, None where it is empty.

    Raises:
        ValueError: the column has no number, or one that no run can have.
    """
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {_short(text)}, not a number") from None
    # Products of a few such numbers stay far within a float's range.
    if not 0 <= value <= _LARGEST or 0 < value < 1 / _LARGEST:
        raise ValueError(f"{name} is {_short(text)}, not a number from 0 to {_LARGEST:g}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def whole_number(row: Row, name: str) -> int | None:
    """Returns the number as `number` does; it must be a whole number."""
    value = number(row, name)
    if value is not None and value % 1:
        raise ValueError(f"{name} is {value:g}, not a whole number")
    return None if value is None else int(value)


def positive_number(row: Row, name: str) -> int:
    """Returns the number as `whole_number` does; it must be stated and at least 1."""
    value = whole_number(row, name)
    if value is None:
        raise ValueError(f"{name} not stated")
    if value < 1:
        raise ValueError(f"{name} is {value}, below 1")
    return value


def within_node(row: Row) -> bool:
    """Returns whether a run has one node, of 8 devices where the row does not state its nodes."""
    return (number(row, "nodes") or (number(row, "gpus") or 0) / 8) <= 1


def choice(row: Row, name: str, choices: Sequence[str], default: str = "") -> str:
    """Returns the word in column `name`, `default` where it is empty.

    Raises:
        ValueError: it is not one of `choices`.
    """
    word = row.get(name) or default
    if word and word not in choices:
        raise ValueError(f"{name} {word!r} is not one of {', '.join(choices)}")
    return word
