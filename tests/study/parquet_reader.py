"""Reads files of `platform.study.parquet`, to test that writing loses nothing."""

# pyright: reportPrivateUsage=false

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from platform.study.parquet import _columns
from trainers.records.measurement import Measurement
from trainers.spec.codec import from_json


def read_parquet(path: Path) -> tuple[Measurement, ...]:
    """Returns the measurements that `write_parquet` wrote."""
    return tuple(from_json(Measurement, _nested(row)) for row in pq.read_table(path).to_pylist())


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for column in _columns():
        if column.name not in row:
            continue
        value = row[column.name]
        if typing.get_origin(column.hint) is Mapping and value is not None:
            value = dict(value)
        branch = data
        for step in column.path[:-1]:
            branch = branch.setdefault(step, {})
        branch[column.path[-1]] = value
    if data["recipe"].get("grad_accum"):
        data["recipe"]["global_batch"] = 0
    for part, name in ((data, "conditions"), (data["recipe"], "workload"), (data["recipe"], "model")):
        if part.get(name) is not None and all(value is None for value in part[name].values()):
            part[name] = None
    if data["recipe"].get("workload"):  # what a command decides has no value in the table
        for name in ("recipe", "layout"):
            data[name] = {key: value for key, value in data[name].items() if value is not None or key == "model"}
    return data
