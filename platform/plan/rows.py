"""The rows of a plan's answer, and their CSV file (`--csv`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.report.table import Column, write_csv

_LISTS = ("comparison", "gpus", "sweep", "batch_rampup", "max_model", "points")
"""Keys of an answer that hold rows, except rows by layout; an answer has at most one of them."""


def rows_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns an answer's rows: layouts, best first, or a row for each cluster, number of devices, network or phase."""
    if "recipes" in answer:
        return [{"recipe": recipe["recipe"], **layout} for recipe in answer["recipes"] for layout in recipe["layouts"]]
    if fewest := answer.get("min_nodes"):
        return [dict(row) for row in fewest["against_nodes"]]
    return [dict(row) for name in _LISTS for row in answer.get(name, ())]


def write_rows(path: Path, answer: Mapping[str, Any]) -> None:
    """Writes the rows as CSV, one column per key; objects are written as JSON.

    Raises:
        InputError: the file cannot be written.
    """
    rows = rows_of(answer)
    keys = dict.fromkeys(key for row in rows for key in row)
    write_csv(path, [_column(key) for key in keys], rows)


def _column(key: str) -> Column[Mapping[str, Any]]:
    def value(row: Mapping[str, Any]) -> Any:
        cell = row.get(key)
        return json.dumps(cell) if isinstance(cell, dict | list) else "" if cell is None else cell

    return Column(key=key, value=value)
