"""Writes measurements as Parquet: one flat row each, with the column names of the measurement table.

pyarrow is imported on first use, because a search needs it only at its end.
"""

import dataclasses
import enum
import functools
import importlib
import itertools
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
    ("recipe", "workload", "name"): "workload",
    ("recipe", "workload", "command"): "workload_command",
    ("recipe", "workload", "digest"): "workload_digest",
    ("recipe", "workload", "folder"): "workload_folder",
    ("recipe", "workload", "build"): "workload_build",
    ("recipe", "workload", "environment"): "workload_environment",
    **{("recipe", name): declared.table for name, declared in axes_of(Recipe).items() if declared.table},
    **{("layout", name): declared.table for name, declared in axes_of(Layout).items() if declared.table},
    ("conditions", "device"): "gpu",
    ("conditions", "num_nodes"): "nodes",
}
"""Column names of fields, by path; all other columns are called like their field."""

_DERIVED: dict[str, tuple[str, type, Callable[[Any], Any]]] = {
    "id": ("", str, lambda measurement: measurement.id),
    "recipe": ("recipe", str, lambda recipe: recipe.id),
    "layout_id": ("layout", str, lambda layout: layout.id),
    "layout_label": ("layout", str, lambda layout: layout.label),
    "params_b": ("recipe", float, lambda recipe: recipe.model.num_parameters / 1e9 if recipe.has_model else None),
    "gpus": ("layout", int, lambda layout: layout.world_size),
    "dp": ("layout", int, lambda layout: None if layout.unknown else layout.data_parallel),
    "miniature": ("recipe", bool, lambda recipe: recipe.miniature_of is not None),
}
"""Derived columns: the field each is computed from ("" for the whole measurement), its type, and the function."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    name: str
    path: tuple[str, ...]
    hint: Any

    @property
    def is_plain(self) -> bool:
        """Whether Arrow accepts the measurement's field without conversion."""
        item = typing.get_args(self.hint)[0] if typing.get_origin(self.hint) is tuple else self.hint
        return len(self.path) == 1 and item in (bool, int, float, str)


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
    """Returns pyarrow and its Parquet module; `importlib` is used because they have no type stubs."""
    return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")


def write_parquet(path: Path, measurements: Sequence[Measurement]) -> None:
    """Writes measurements to `path` atomically.

    Raises:
        InputError: the file cannot be written.
    """
    pa, pq = _pyarrow()
    rows = tuple(measurements)
    table: dict[str, Any] = {}
    for name, (field, kind, make) in _DERIVED.items():
        values, indices = _distinct([getattr(row, field) if field else row for row in rows])
        table[name] = pa.array(map(make, values), _arrow_type(kind, pa)).take(pa.array(indices, pa.int64()))
    for name, columns in itertools.groupby(_columns(), lambda column: column.path[0]):
        values, indices = [getattr(row, name) for row in rows], None
        for column in columns:
            if column.is_plain:
                table[column.name] = pa.array(values, _arrow_type(column.hint, pa))
                continue
            if indices is None:
                values, indices = _distinct(values)
            cells = pa.array([_cell(value, column.path[1:]) for value in values], _arrow_type(column.hint, pa))
            table[column.name] = cells.take(pa.array(indices, pa.int64()))
    # Also set for recipes that fix the accumulation.
    table["global_batch"] = pa.array([row.global_batch for row in rows], pa.int64())
    with replacing(path) as part:
        pq.write_table(pa.table(table), part)


def _distinct(values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Returns the distinct objects by identity, and each value's index among them.

    Recipes and conditions make up most cells of a row but have few distinct objects in a study, so each is converted
    once.
    """
    index_by_id: dict[int, int] = {}
    indices = [index_by_id.setdefault(id(value), len(index_by_id)) for value in values]
    by_id = {id(value): value for value in values}
    return [by_id[key] for key in index_by_id], indices


def _cell(value: Any, path: Sequence[str]) -> Any:
    """Returns the value at `path` in a form that Arrow accepts; None if it is unknown or a part of the path is None."""
    for step in path:
        value = None if value is None or step in getattr(value, "unknown", ()) else getattr(value, step)
    json = to_json(value)
    return list(json.items()) if isinstance(json, dict) else json  # type: ignore[reportUnknownVariableType]
