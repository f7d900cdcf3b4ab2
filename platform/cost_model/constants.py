"""Constants of the formulas by module; `constants.json` has values, units and sources.

`commit` is the first commit with the value. `command`, if present, measures the value again. "This project" in a source
means this project's measurements (docs/measurements.md).
"""

import functools
import pathlib
from typing import Any

from trainers.records.plain_files import read_json

_FILE = pathlib.Path(__file__).with_name("constants.json")


@functools.cache
def table() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns every constant with its provenance, by module and name."""
    return read_json(_FILE, links=True)


def number(module: str, name: str) -> float:
    """Returns the value of a constant that is a single number."""
    value = table()[module][name]["value"]
    assert isinstance(value, (int, float)), name
    return value


def pair(module: str, name: str) -> tuple[float, float]:
    """Returns the values of a constant for the forward and the backward pass."""
    forward, backward = table()[module][name]["value"]
    return forward, backward


def words(module: str, name: str) -> dict[str, float]:
    """Returns a constant's values by their names."""
    return dict(table()[module][name]["value"])
