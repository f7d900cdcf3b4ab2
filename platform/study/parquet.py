"""Stores measurements as Parquet, one flat row each with the measurement table's column names.

pyarrow is imported when it is needed: a search has nothing to do with it before its end.
"""

import dataclasses
import enum
import functools
import importlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.study.atomic_write import replacing
from trainers.records.measurement import Measurement
from trainers.spec.axis import axes_of
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

PARQUET = "measurements.parquet"

_NAMES: dict[tuple[str, ...], str] = {
    ("recipe", "model", "name"): "model",
    ("recipe", "model", "num_layers"): "layers",
    ("recipe", "model", "hidden_size"): "hidden",
    ("recipe", "model", "num_heads"): "heads",
    ("recipe", "model", "num_kv_heads"): "kv_heads",
    ("recipe", "model", "ffn_size"): "ffn",
    ("recipe", "model", "vocab_size"): "vocab",
    ("recipe", "model", "config"): "model_config",
    **{("recipe", name): declared.table for name, declared in axes_of(Recipe).items() if declared.table},
    **{("layout", name): declared.table for name, declared in axes_of(Layout).items() if declared.table},
    ("conditions", "device"): "gpu",
    ("conditions", "num_nodes"): "nodes",
}
"""Columns that have the measurement table's names; all others have their field's name."""

_DERIVED: dict[str, Callable[[Measurement], Any]] = {
    "id": lambda measurement: measurement.id,
    "recipe": lambda measurement: measurement.recipe.id,
    "layout_id": lambda measurement: measurement.layout.id,
    "layout_label": lambda measurement: measurement.layout.label,
    "params_b": lambda measurement: measurement.recipe.model.num_parameters / 1e9,
    "gpus": lambda measurement: measurement.num_devices,
    "dp": lambda measurement: measurement.layout.data_parallel,
    "miniature": lambda measurement: measurement.miniature,
}
"""Extra columns for readers' convenience, computed from the others."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    name: str
    path: tuple[str, ...]
    hint: Any


@functools.cache
def _columns() -> tuple[_Column, ...]:
    columns = tuple(_walk(Measurement, ()))
    names = [*_DERIVED, *(column.name for column in columns)]
    assert len(set(names)) == len(names), f"two columns of one name: {sorted(names)}"
    return columns


def _walk(kind: type, prefix: tuple[str, ...]) -> typing.Iterator[_Column]:
    for name, hint in typing.get_type_hints(kind).items():
        path, plain = (*prefix, name), _plain(hint)
        if isinstance(plain, type) and dataclasses.is_dataclass(plain):
            yield from _walk(plain, path)
        else:
            yield _Column(name=_NAMES.get(path, name), path=path, hint=plain)


def _plain(hint: Any) -> Any:
    """Returns the hint without its `| None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(get_arg for get_arg in typing.get_args(hint) if get_arg is not type(None))
    return hint


def _arrow_type(hint: Any, pa: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return pa.list_(_arrow_type(typing.get_args(hint)[0], pa))
    if origin is Mapping:
        return pa.map_(pa.string(), pa.string())
    if origin is typing.Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return pa.string()
    return {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}[hint]


def _pyarrow() -> tuple[Any, Any]:
    """Returns pyarrow, which has no type stubs, and its Parquet module."""
    return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")


def write_parquet(path: Path, measurements: Sequence[Measurement]) -> None:
    """Writes measurements, replacing the file as a whole.

    Raises:
        InputError: the file cannot be written.
    """
    pa, pq = _pyarrow()
    kinds = {"params_b": float, "gpus": int, "dp": int, "miniature": bool}
    fields = [pa.field(name, _arrow_type(kinds.get(name, str), pa)) for name in _DERIVED]
    fields += [pa.field(column.name, _arrow_type(column.hint, pa)) for column in _columns()]
    json_by_id: dict[int, Any] = {}
    rows = [_flat(measurement, json_by_id) for measurement in measurements]
    with replacing(path) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), part)


def _flat(measurement: Measurement, json_by_id: dict[int, Any]) -> dict[str, Any]:
    """Returns the row of a measurement; `json_by_id` holds the JSON of recipes, layouts and what else rows share, by
    identity.
    """
    row: dict[str, Any] = {name: make(measurement) for name, make in _DERIVED.items()}
    data: dict[str, Any] = {}
    for field in dataclasses.fields(measurement):
        value = getattr(measurement, field.name)
        if not dataclasses.is_dataclass(value):
            data[field.name] = to_json(value)
            continue
        if id(value) not in json_by_id:
            json_by_id[id(value)] = to_json(value)
        data[field.name] = json_by_id[id(value)]
    for column in _columns():
        value = data
        for step in column.path:
            value = None if value is None else value[step]
        row[column.name] = list(value.items()) if isinstance(value, dict) else value  # type: ignore[reportUnknownArgumentType]
    return row | {"global_batch": measurement.global_batch}  # a recipe with a fixed accumulation leaves it open
