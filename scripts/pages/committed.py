"""Reads the committed tables of measurements."""

import csv
from pathlib import Path
from types import SimpleNamespace

from platform.report.measurement_table import HEADER


def read_table(path: Path) -> list[SimpleNamespace]:
    """Returns the rows of a table of this project, with a field per column: int, float or text, None if blank."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: _plain(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    return [SimpleNamespace(**(dict.fromkeys(HEADER) | row)) for row in rows]


def _plain(cell: str) -> int | float | str | None:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None
