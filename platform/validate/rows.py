"""Rows of a measured table as text, and the numbers and words in them."""

import collections
import csv
import os
import pathlib
from collections.abc import Mapping

from platform.common.errors import InputError
from trainers.records.plain_files import open_plain
from trainers.spec.axis import axes_of, choices_of, defaults_of
from trainers.spec.layout import Layout

Row = Mapping[str, str]

NEEDED = (
    "model", "layers", "hidden", "heads", "vocab", "seq_len", "gpu", "gpus", "tp", "pp", "strategy", "micro_batch",
    "activation_ckpt", "precision", "status",
)  # fmt: skip
_CODES = (
    "strategy", "activation_ckpt", "flash_attention", "seq_parallel", "status", "software", "attention_kernel", "fused",
    "tp_overlap", "matmul_precision",
)  # fmt: skip
"""Columns of fixed words, whose case does not matter."""
_MOST_BYTES = 2**30
"""Size of a table up to which it is read."""
_LARGEST = 1e9
"""Upper limit of a table's counts, sizes, times and rates; its inverse is their lower limit above 0."""


def read_rows(path: pathlib.Path) -> list[Row]:
    """Returns the rows of a table.

    Raises:
        InputError: no such file, or it lacks columns that the model needs.
    """
    try:
        table = open_plain(path, links=True, most_bytes=_MOST_BYTES)
        with os.fdopen(table, newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a byte order mark
            reader = csv.DictReader(file)
            rows = list(reader)
            header = reader.fieldnames or ()
    except InputError as error:
        raise InputError(f"cannot read table: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read table {path}: {cause}") from None
    twice = [name for name, count in collections.Counter(header).items() if name and count > 1]
    if twice:
        raise InputError(f"table {path} has the columns {', '.join(twice)} more than once: keep one of each")
    parted = [mark for mark in (";", "\t", "|") if len(header) == 1 and mark in header[0]]
    if parted:
        raise InputError(f"table {path} parts its columns by {parted[0]!r}: save it with commas")
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise InputError(
            f"table {path} lacks the columns {', '.join(missing)}; docs/reference/columns.md has the whole header"
        )
    return [{name: _cell(name, value) for name, value in row.items() if name is not None} for row in rows]


def _cell(name: str, value: str | None) -> str:
    text = (value or "").strip()
    return text.lower() if name in _CODES else text


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


def noted_kernels(notes: str) -> dict[str, str]:
    """Returns the layout's kernels that the notes of a row state, by axis: the measurement table has no column for
    them. Axes that are not stated are at their defaults.
    """
    noted = {name: axis for name, axis in axes_of(Layout).items() if axis.note and axis.column == "kernels"}
    return {
        name: value
        for name, declared in noted.items()
        for value in choices_of(Layout)[name]
        if value != defaults_of(Layout)[name] and declared.note.format(value) in notes
    }


def mlp_of(notes: str) -> str:
    """Returns the layout's `mlp` from the notes of a row."""
    return noted_kernels(notes).get("mlp", "plain")


def words(row: Row) -> str:
    """Returns source and notes, in lower case."""
    return " ".join(row.get(name, "") for name in ("source", "notes")).lower()
