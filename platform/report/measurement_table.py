"""The measurement table as CSV, with the same columns for this project's figures and for published ones.

`docs/reference/columns.md` describes the columns.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from platform.common.text import stages
from platform.report.columns import MeasuredRow
from platform.report.table import Column, write_csv
from platform.study.result.result import StudyResult
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import MODEL_PARALLEL

GB_PER_GIB = 2**30 / 1e9

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
_DERIVED = ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu")
"""Columns that are derived if the step time is derived from its parts."""


def _gpu_mem_gb(row: MeasuredRow) -> float:
    """Returns the memory of the measurement's devices; of a point that did not run, that of the study's."""
    conditions = row.run.conditions
    return (row.header.cluster if conditions is None else conditions).device_memory_gib * GB_PER_GIB


def _nodes(row: MeasuredRow) -> int:
    conditions = row.run.conditions
    if conditions is not None:
        return conditions.num_nodes
    return math.ceil(row.run.layout.world_size / row.header.cluster.devices_per_node)


def _percent(tflops: float | None, peak: float | None) -> float | None:
    return None if tflops is None or not peak else 100 * tflops / peak


def _peak_mem_gb(row: MeasuredRow) -> float | None:
    peak_gib = row.run.peak_allocated_gib
    return None if peak_gib is None else peak_gib * GB_PER_GIB


def _notes(measurement: Measurement) -> Iterable[str]:
    """Yields notes on facts without a column."""
    if measurement.miniature:
        yield f"miniature of {measurement.recipe.miniature_of}"
    if balance := measurement.recipe.forced_balance:
        yield f"forced balance: {balance}"
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
    if measurement.remark:
        yield measurement.remark
    if measurement.reason:
        yield " ".join(measurement.reason.split())


def _axis(name: str) -> Callable[[MeasuredRow], Any]:
    return lambda row: None if name in row.run.layout.unknown else getattr(row.run.layout, name)


def _recipe(name: str) -> Callable[[MeasuredRow], Any]:
    return lambda row: None if name in row.run.recipe.unknown else getattr(row.run.recipe, name)


def _model(name: str) -> Callable[[MeasuredRow], Any]:
    return lambda row: getattr(row.run.recipe.model, name) if row.run.recipe.has_model else None


_AXES = {declared.table or name: _axis(name) for name, declared in axes_of(Layout).items()}
"""Function that reads a layout axis' cell, by the column's name."""
_CELLS: dict[str, Callable[[MeasuredRow], Any]] = {
    "source": lambda row: f"study {row.header.name}",
    "model": lambda row: row.run.recipe.name,
    "architecture": _model("architecture"),
    "params_b": lambda row: row.run.recipe.model.num_parameters / 1e9 if row.run.recipe.has_model else None,
    "layers": _model("num_layers"),
    "hidden": _model("hidden_size"),
    "heads": _model("num_heads"),
    "kv_heads": _model("num_kv_heads"),
    "ffn": _model("ffn_size"),
    "experts": lambda row: _model("num_experts")(row) or None,
    "top_k": lambda row: _model("experts_per_token")(row) or None,
    "shared_ffn": lambda row: _model("shared_ffn_size")(row) or None,
    "head_dim": lambda row: _model("head_width")(row) or None,
    "window": lambda row: _model("window")(row) or None,
    "window_layers": lambda row: _model("window_layers")(row) or None,
    "vocab": _model("vocab_size"),
    "seq_len": lambda row: row.run.recipe.seq_len,
    "gpu": lambda row: (row.run.conditions or row.header.cluster).device,
    "gpu_mem_gb": _gpu_mem_gb,
    "nodes": _nodes,
    "gpus": lambda row: row.run.layout.world_size,
    "dp": lambda row: None if row.run.layout.unknown else row.run.layout.data_parallel,
    "strategy": lambda row: strategy(row.run.layout) or None,
    "micro_batch": lambda row: row.run.batch.micro_batch,
    "grad_accum": lambda row: row.run.batch.grad_accum,
    "global_batch": lambda row: row.run.global_batch,
    "precision": _recipe("compute_precision"),
    # What sdpa and flex run inside depends on mask and device: not stated here, `attention` names the choice.
    "flash_attention": lambda row: "no" if _axis("attention")(row) == "eager" else None,
    "iter_time_s": lambda row: row.run.step_time_s,
    "tokens_per_s_per_gpu": lambda row: row.run.tokens_per_s_per_gpu,
    "tflops_per_gpu": lambda row: row.run.model_tflops_per_gpu,
    "mfu": lambda row: _percent(row.run.model_tflops_per_gpu, row.run.datasheet_peak_tflops),
    "hfu": lambda row: _percent(row.run.hardware_tflops_per_gpu, row.run.datasheet_peak_tflops),
    "peak_mem_gb": _peak_mem_gb,
    "status": lambda row: _STATUS[row.run.outcome],
    "seq_parallel": lambda row: "yes" if row.run.layout.parts("width") > 1 else None,
    "derived": lambda row: ";".join(_DERIVED) if row.run.step_time_derived else None,
    "notes": lambda row: "; ".join(_notes(row.run)) or None,
    "recipe": lambda row: row.run.trained_recipe.id,
    "optimizer": _recipe("optimizer"),
    "state_precision": _recipe("state_precision"),
    "compression": _recipe("compression"),
    "cap_gib": lambda row: row.run.cap_gib,
    "outcome": lambda row: row.run.outcome.value,
    "peak_reserved_gib": lambda row: row.run.peak_reserved_gib,
    "peak_host_gib": lambda row: row.run.peak_host_gib,
    "layout_id": lambda row: row.run.layout.id,
    "compile_s": lambda row: row.run.compile_s,
    "adapter": lambda row: row.run.recipe.adapter if row.run.recipe.adapter_rank else None,
    "lora_targets": lambda row: row.run.recipe.lora_targets if row.run.recipe.adapter_rank else None,
}
"""Function that reads the cell of each other column of this project's rows."""
_NAMES = (
    "source,url_or_repo_path,model,params_b,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpu,gpu_mem_gb,nodes,gpus,"
    "tp,pp,cp,dp,strategy,micro_batch,grad_accum,global_batch,activation_ckpt,precision,flash_attention,iter_time_s,"
    "tokens_per_s_per_gpu,tflops_per_gpu,mfu,hfu,peak_mem_gb,status,vp,ep,seq_parallel,derived,notes,recipe,engine,"
    "optimizer,state_precision,grad_sync,offload,attention,loss,compile,compression,cap_gib,outcome,peak_reserved_gib,"
    "layout_id,compile_s,experts,top_k,shared_ffn,adapter,lora_targets,head_dim,window,window_layers,architecture,"
    "peak_host_gib"
)
HEADER = tuple(dict.fromkeys((*_NAMES.split(","), *MODEL_PARALLEL)))
"""The columns in order. Published tables have those before `recipe`."""


_OF_RECIPE = frozenset(
    (
        *(
            "model",
            "architecture",
            "params_b",
            "layers",
            "hidden",
            "heads",
            "kv_heads",
            "ffn",
            "experts",
            "top_k",
            "shared_ffn",
            "head_dim",
            "window",
            "window_layers",
            "vocab",
            "seq_len",
            "precision",
        ),
        *("optimizer", "state_precision", "compression", "adapter", "lora_targets"),
    )
)
_OF_LAYOUT = frozenset((*_AXES, "gpus", "dp", "strategy", "flash_attention", "seq_parallel", "layout_id"))


def _part(name: str) -> Callable[[MeasuredRow], object] | None:
    """Returns a function of the part of a row (recipe or layout) on which alone the column depends; None for others."""
    if name in _OF_RECIPE:
        return lambda row: row.run.recipe
    return (lambda row: row.run.layout) if name in _OF_LAYOUT else None


def _nothing(_: MeasuredRow) -> None:
    """Returns the empty cell of a column that only published rows fill."""


def table_of(result: StudyResult, journal: Path | None = None) -> tuple[list[Column[MeasuredRow]], list[MeasuredRow]]:
    """Returns the table's columns and a row for each measurement, skipped ones included.

    `journal` is the path written as the rows' source.
    """
    cells = _AXES | _CELLS | {"url_or_repo_path": lambda _: journal and str(journal)}
    columns = [Column(key=name, value=cells.get(name, _nothing), of=_part(name)) for name in HEADER]
    return columns, [MeasuredRow(run=measurement, header=result.header) for measurement in result.history.measurements]


def write_table(path: Path, result: StudyResult, journal: Path | None = None) -> None:
    """Writes the study's table as CSV.

    Raises:
        InputError: the file cannot be written.
    """
    write_csv(path, *table_of(result, journal))


def strategy(layout: Layout) -> str:
    """Returns the published tables' name for what is sharded; the column `engine` names the engine.

    Without sharding it is "ddp" for every engine. FSDP2 that keeps its parameters after the forward pass shards only
    gradients and states, which is "zero2".
    """
    return layout.rules.strategy(layout)
