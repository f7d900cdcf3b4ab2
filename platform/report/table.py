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
    """Returns a value for people: three digits of a figure, anything else as it is."""
    return figure(value) if isinstance(value, float) else str(value)


def percent(share: float) -> str:
    """Returns a share in per cent, without the sign, which the title has."""
    return f"{100 * share:.1f}"


def no_style(_: Any) -> str:
    """Returns the style of a row or cell that has none."""
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column(Generic[R]):
    """A column of a table of rows `R`, in all views of the table."""

    key: str = ""
    """The name in JSON, CSV and MLflow's tables."""
    title: str = ""
    """The title for people, with line ends where it may break."""
    value: Callable[[R], Any]
    """The cell as a plain value; None where there is none."""
    of: Callable[[R], object] | None = None
    """The part of a row that alone the value depends on, where many rows share it: read once for each in files."""
    shown: Callable[[Any], str] = shown
    derived: Callable[[R], bool] | None = None
    """Whether a row's figure is derived from the parts of a shorter step: it is marked by a tilde."""
    blank: str = ""
    """Text of a cell without a value."""
    note: str = ""
    """Sentence that explains the column below the table."""
    drop: int = 0
    """Order in which columns are dropped for lack of width: 1 first, 0 never."""
    point: bool = False
    """Whether the column describes what was run, and so applies to failures, rather than a figure."""
    left: bool = False
    fold: int = 0
    """Least width in characters of a column that folds; 0 for one that does not."""
    style: Callable[[R], str] = no_style
    """Style of a cell on a terminal."""
    css: Callable[[R], str] = no_style
    """Style of a cell on a page."""

    def text(self, row: R) -> str:
        """Returns the cell for people."""
        value = self.value(row)
        if value is None:
            return self.blank
        return self.shown(value) + "~" * (self.derived is not None and self.derived(row))

    @property
    def flat(self) -> str:
        """The title on one line."""
        return self.title.replace("\n", " ").replace(" /", "/").replace("- ", "-")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table(Generic[R]):
    """Columns and rows, for people."""

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    style: Callable[[R], str] = no_style
    """Style of a row on a terminal."""

    @property
    def texts(self) -> list[list[str]]:
        """The cells of each row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]

    @property
    def filled(self) -> "Table[R]":
        """The table without columns that have no value in any row."""
        return dataclasses.replace(self, columns=with_values(self.columns, self.rows))


def with_values(columns: Iterable[Column[S]], rows: Sequence[S]) -> list[Column[S]]:
    """Returns the columns that have a value in some row."""
    return [column for column in columns if any(column.value(row) not in (None, "", 0, ()) for row in rows)]


def records(columns: Sequence[Column[S]], rows: Iterable[S]) -> list[dict[str, Any]]:
    """Returns the rows as plain values by the columns' keys."""
    return [{column.key: column.value(row) for column in columns} for row in rows]


def write_csv(path: Path, columns: Sequence[Column[S]], rows: Sequence[S]) -> None:
    """Writes a table, replacing the file as a whole. Figures keep every digit; None and what is not finite is blank.

    Raises:
        InputError: the file cannot be written.
    """
    cells = [_cells(column, rows) for column in columns]
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows(zip(*cells, strict=True))


def _cells(column: Column[S], rows: Sequence[S]) -> list[Any]:
    """Returns the column's values as cells of CSV."""
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
    """Table in its place on a terminal that it is too wide for."""
    narrow_notes: Sequence[str] = ()
