"""The measurement table as CSV: one header for the project's own figures and for published ones.

`docs/reference/columns.md` has the columns.
"""

import csv
import dataclasses
import functools
import math
import os
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.text import stages
from platform.study.atomic_write import replacing
from trainers.records.measurement import Measurement, Outcome
from trainers.records.plain_files import open_plain
from trainers.spec.axis import axes_of
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec

GB_PER_GIB = 2**30 / 1e9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One run. None is a blank cell: not stated. The fields are the header, in its order."""

    source: str
    url_or_repo_path: str | None = None
    model: str | None = None
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    gpu: str | None = None
    gpu_mem_gb: float | None = None
    nodes: int | None = None
    gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    dp: int | None = None
    strategy: str | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    global_batch: int | None = None
    activation_ckpt: str | None = None
    precision: str | None = None
    flash_attention: str | None = None
    iter_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_mem_gb: float | None = None
    status: str | None = None
    vp: int | None = None
    ep: int | None = None
    seq_parallel: str | None = None
    derived: str | None = None
    notes: str | None = None
    recipe: str | None = None
    engine: str | None = None
    optimizer: str | None = None
    state_precision: str | None = None
    grad_sync: str | None = None
    offload: str | None = None
    attention: str | None = None
    loss: str | None = None
    compile: str | None = None
    compression: str | None = None
    cap_gib: float | None = None
    outcome: str | None = None
    peak_reserved_gib: float | None = None
    layout_id: str | None = None
    compile_s: float | None = None


HEADER: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(TableRow))
NUM_PUBLISHED = HEADER.index("recipe")
"""Number of columns that published tables have; the project's own follow."""

_COLUMNS = {
    name: declared.table or name for name, declared in axes_of(Layout).items() if (declared.table or name) in HEADER
}
"""Column of each layout axis that has one."""
_DERIVED = ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu")
"""Columns that follow from a step that was derived from its parts."""
_STATUS = {
    Outcome.OK: "ok",
    Outcome.THRASH: "ok",
    Outcome.SLOW: "ok",
    Outcome.OOM: "oom",
    Outcome.DIVERGED: "error",
    Outcome.HUNG: "error",
    Outcome.FAILED: "error",
    Outcome.SKIPPED: None,
}


def to_rows(measurements: Iterable[Measurement], *, cluster: Cluster, source: str, path: str = "") -> list[TableRow]:
    """Returns measurements as rows, in their order, skipped ones included; `source` and `path` state their origin."""
    return [_row(measurement, cluster, source, path) for measurement in measurements]


def _row(measurement: Measurement, cluster: Cluster, source: str, path: str) -> TableRow:
    return TableRow(
        source=source,
        url_or_repo_path=path or None,
        notes="; ".join(_notes(measurement)) or None,
        **_model_cells(measurement.recipe.model),
        **_device_cells(measurement, cluster),
        **_run_cells(measurement),
        **_result_cells(measurement),
    )


def _model_cells(model: ModelSpec) -> dict[str, Any]:
    return {
        "model": model.name,
        "params_b": model.num_parameters / 1e9,
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "ffn": model.ffn_size,
        "vocab": model.vocab_size,
    }


def _device_cells(measurement: Measurement, cluster: Cluster) -> dict[str, Any]:
    """Returns the cells of the devices that ran the measurement; of what was not run, those of the study."""
    conditions, gpus = measurement.conditions, measurement.layout.world_size
    memory_gib = cluster.device_memory_gib if conditions is None else conditions.device_memory_gib
    return {
        "gpu": cluster.device if conditions is None else conditions.device,
        "gpu_mem_gb": memory_gib * GB_PER_GIB,
        "nodes": math.ceil(gpus / cluster.devices_per_node) if conditions is None else conditions.num_nodes,
        "gpus": gpus,
    }


def _run_cells(measurement: Measurement) -> dict[str, Any]:
    """Returns the cells of recipe, layout and batch point."""
    recipe, layout = measurement.recipe, measurement.layout
    return {
        "seq_len": recipe.seq_len,
        "dp": layout.data_parallel,
        "strategy": strategy(layout),
        "micro_batch": measurement.batch.micro_batch,
        "grad_accum": measurement.batch.grad_accum,
        "global_batch": measurement.global_batch,
        "precision": recipe.compute_precision,
        # What sdpa and flex run inside depends on mask and device: not stated here, `attention` names the choice.
        "flash_attention": "no" if layout.attention == "eager" else None,
        "recipe": measurement.trained_recipe.id,
        "optimizer": recipe.optimizer,
        "state_precision": recipe.state_precision,
        "compression": recipe.compression,
        "cap_gib": measurement.cap_gib,
        "layout_id": layout.id,
        "seq_parallel": "yes" if layout.tp > 1 else None,
        **{name: getattr(layout, axis) for axis, name in _COLUMNS.items()},
    }


def _result_cells(measurement: Measurement) -> dict[str, Any]:
    """Returns the cells of outcome, time and memory."""
    datasheet, peak_gib = measurement.datasheet_peak_tflops, measurement.peak_allocated_gib
    return {
        "iter_time_s": measurement.step_time_s,
        "tokens_per_s_per_gpu": measurement.tokens_per_s_per_gpu,
        "tflops_per_gpu": measurement.model_tflops_per_gpu,
        "mfu": _percent(measurement.model_tflops_per_gpu, datasheet),
        "hfu": _percent(measurement.hardware_tflops_per_gpu, datasheet),
        "peak_mem_gb": None if peak_gib is None else peak_gib * GB_PER_GIB,
        "status": _STATUS[measurement.outcome],
        "derived": ";".join(_DERIVED) if measurement.step_time_derived else None,
        "outcome": measurement.outcome.value,
        "peak_reserved_gib": measurement.peak_reserved_gib,
        "compile_s": measurement.compile_s,
    }


def strategy(layout: Layout) -> str:
    """Returns the published tables' word for what is sharded; `engine` states by what.

    Nothing sharded is "ddp" whatever the engine; FSDP2 that keeps its parameters after the forward pass shards
    gradients and states only, which is "zero2".
    """
    return layout.rules.strategy(layout)


def _notes(measurement: Measurement) -> Iterable[str]:
    """Yields notes on what has no column."""
    if measurement.miniature:
        yield f"miniature of {measurement.recipe.model.miniature_of}"
    if measurement.repeat:
        yield f"repeat {measurement.repeat}"
    layout = measurement.layout
    if layout.is_hybrid:
        yield f"{layout.dp_replicate} replicas of {layout.dp_shard} shards"
    if note := layout.rules.note(layout):
        yield note
    if fullest := stages(measurement.memory_stages):
        yield f"most memory on {fullest}"
    for name, declared in axes_of(Layout).items():
        if declared.note and layout.is_set(name):
            yield declared.note.format(getattr(layout, name))
    if measurement.reason:
        yield " ".join(measurement.reason.split())


def _percent(tflops: float | None, peak: float | None) -> float | None:
    return None if tflops is None or not peak else 100 * tflops / peak


_MOST_BYTES = 2**30
"""Size of a table up to which it is read."""


def write_csv(path: Path, rows: Iterable[TableRow]) -> None:
    """Writes a table, replacing the file as a whole. Figures keep every digit.

    Raises:
        InputError: the file cannot be written.
    """
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows([_text(getattr(row, name)) for name in HEADER] for row in rows)


def _text(value: str | int | float | None) -> str | int | float:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def read_csv(path: Path) -> list[TableRow]:
    """Returns the rows of a table, with or without the project's own columns.

    Raises:
        InputError: the file cannot be read, lacks a published column, has an unknown one, or a cell of the wrong kind.
    """
    try:
        with os.fdopen(open_plain(path, links=True, most_bytes=_MOST_BYTES), newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, None) or list[str]()
            _check_header(path, names)
            return [_parse(path, number, names, cells) for number, cells in enumerate(reader, start=2) if cells]
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"the table {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the table {path} is not CSV in UTF-8: {error}") from error


def _check_header(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in HEADER[:NUM_PUBLISHED] if name not in names]
    unknown = [name for name in names if name not in HEADER]
    repeated = sorted({name for name in names if names.count(name) > 1})
    for problem, names in (("lacks", missing), ("has unknown", unknown), ("repeats", repeated)):
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            raise InputError(
                f"the header of {path} {problem} {', '.join(names[:6])}{more}: see docs/reference/columns.md"
            )


def _parse(path: Path, number: int, names: Sequence[str], cells: Sequence[str]) -> TableRow:
    if len(cells) != len(names):
        raise InputError(f"row {number} of {path} has {len(cells)} cells, its header {len(names)}")
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        kind = _kinds()[name]
        try:
            values[name] = _cell(kind, cell)
        except ValueError as error:
            raise InputError(f"{name} in row {number} of {path} is no number: {cell!r}") from error
    return TableRow(**values)


def _cell(kind: type, cell: str) -> str | int | float | None:
    if not cell:
        return None
    if kind is int:
        number = float(cell)
        if not number.is_integer():
            raise ValueError(cell)
        return int(number)
    if kind is float:
        number = float(cell)
        if not math.isfinite(number):
            raise ValueError(cell)
        return number
    return cell


@functools.cache
def _kinds() -> dict[str, type]:
    hints = typing.get_type_hints(TableRow)
    return {name: (typing.get_args(hint) or (hint,))[0] for name, hint in hints.items()}
