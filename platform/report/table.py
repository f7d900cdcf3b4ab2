"""The table of every report: columns declared once, rows, and its plain forms (records and CSV).

`console.py` lays tables out on a terminal, `html/page.html` on a page.
"""

import csv
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from platform.common.text import figure
from platform.study.atomic_write import replacing

R = TypeVar("R")
S = TypeVar("S")


def shown(value: Any) -> str:
    return figure(value) if isinstance(value, float) else str(value)


def percent(share: float) -> str:
    """Returns a share in per cent, without the sign, which is in the title."""
    return f"{100 * share:.1f}"


def no_style(_: Any) -> str:
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column(Generic[R]):
    """A column of a table of rows `R`, in all views of the table."""

    key: str = ""
    """The name in JSON, CSV and MLflow's tables."""
    title: str = ""
    """The title for people; line ends mark where it may break."""
    value: Callable[[R], Any]
    """Returns the cell as a plain value; None if it has none."""
    of: Callable[[R], object] | None = None
    """Returns the part of a row on which alone the value depends; CSV reads the value once for each part."""
    shown: Callable[[Any], str] = shown
    derived: Callable[[R], bool] | None = None
    """Returns whether a row's figure is derived from the parts of a shorter step; it is then marked by a tilde."""
    blank: str = ""
    """Text of a cell without a value."""
    note: str = ""
    """Sentence below the table that explains the column."""
    drop: int = 0
    """Order in which columns are dropped if the width is too small: 1 first, 0 never."""
    point: bool = False
    """Whether the column describes the batch point, so that it is also shown for failures."""
    left: bool = False
    fold: int = 0
    """Least width in characters of a column that folds; 0 if it does not fold."""
    style: Callable[[R], str] = no_style
    """Returns the style of a cell on a terminal."""
    css: Callable[[R], str] = no_style
    """Returns the style of a cell on a page."""

    def text(self, row: R) -> str:
        value = self.value(row)
        if value is None:
            return self.blank
        return self.shown(value) + "~" * (self.derived is not None and self.derived(row))

    @property
    def flat(self) -> str:
        return self.title.replace("\n", " ").replace(" /", "/").replace("- ", "-")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table(Generic[R]):
    """Columns and rows, for people."""

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    style: Callable[[R], str] = no_style
    """Returns the style of a row on a terminal."""

    @property
    def texts(self) -> list[list[str]]:
        return [[column.text(row) for column in self.columns] for row in self.rows]

    @property
    def filled(self) -> "Table[R]":
        return dataclasses.replace(self, columns=with_values(self.columns, self.rows))


def with_values(columns: Iterable[Column[S]], rows: Sequence[S]) -> list[Column[S]]:
    return [column for column in columns if any(column.value(row) not in (None, "", 0, ()) for row in rows)]


def records(columns: Sequence[Column[S]], rows: Iterable[S]) -> list[dict[str, Any]]:
    return [{column.key: column.value(row) for column in columns} for row in rows]


def write_csv(path: Path, columns: Sequence[Column[S]], rows: Sequence[S]) -> None:
    """Writes a table as CSV atomically. Figures keep every digit; None and figures that are not finite are blank.

    Raises:
        InputError: the file cannot be written.
    """
    cells = [_cells(column, rows) for column in columns]
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows(zip(*cells, strict=True))


def _cells(column: Column[S], rows: Sequence[S]) -> list[Any]:
    if column.of is None:
        values = [column.value(row) for row in rows]
    else:
        parts = [id(column.of(row)) for row in rows]
        value_by_part = {part: column.value(row) for part, row in dict(zip(parts, rows, strict=True)).items()}
        values = [value_by_part[part] for part in parts]
    return ["" if isinstance(value, float) and not math.isfinite(value) else value for value in values]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TablePart:
    """A part of a report: a table with heads above and notes below it."""

    heads: Sequence[str]
    table: Table[Any]
    notes: Sequence[str] = ()
    narrow: Table[Any] | None = None
    """Replaces `table` on a terminal that is too narrow for it."""
    narrow_notes: Sequence[str] = ()
