"""What of a measurement, or of a layout's numerics gate, goes into its run in MLflow, under which names.

Made for the pages that compare runs.
"""

import math
from typing import Any

from platform.common.text import degrees, sharding
from platform.finals.gate import verdict_on
from platform.study.history import History
from trainers.codec import identity, to_json
from trainers.journal import GateCurves
from trainers.measurement import Measurement

LONGEST = 500
"""Characters of a value that every MLflow server takes."""

SERIES = {
    "losses": "loss",
    "grad_norms": "grad_norm",
    "step_times_s": "step_times_s",
    "windows_s": "windows_s",
    "sm_clock_mhz": "sm_clock_mhz",
    "power_w": "power_w",
    "utilization_by_device_pct": "utilization_by_device_pct",
}
"""Fields of several values and the metric each becomes: a value for each step, window or rank."""
GATE_SERIES = {"losses": "gate_loss", "grad_norms": "gate_grad_norm"}
"""The same of a gate's curves: those of a winner and of its reference lie over each other where both are charted."""

_TAGS = ("dp_replicate", "dp_shard")
"""Fields of the layout that are tags: as parameters they would be the first axes of every comparison, where `degrees`
and `sharding` say it better."""

_COMPARED = ("tokens_per_s", "peak_allocated_gib")
"""What runs are compared by. A run without them has NaN there: MLflow's parallel coordinates draw a run that lacks a
metric above all others, as if a layout that ran out of memory were the fastest."""
_FIGURES = (
    *_COMPARED,  # first: the metric that MLflow's comparison begins with is the first that all runs have
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "first_micro_step_s",
    "middle_micro_step_s",
    "last_micro_step_s",
    "optimizer_step_s",
    "startup_s",
    "import_s",
    "compile_s",
    "tokens_per_s_per_gpu",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "matmul_peak_tflops",
    "share_of_matmul_peak",
    "datasheet_peak_tflops",
    "share_of_datasheet_peak",
    "peak_reserved_gib",
    "peak_device_gib",
    "peak_forward_backward_gib",
    "peak_optimizer_gib",
    "alloc_retries",
    "utilization_pct",
    "idle_devices",
    "asked_gib",
    "allocated_gib",
    "reserved_gib",
)
"""A measurement's single figures, each a metric under its own name."""


def id_of(entry: Measurement | GateCurves) -> str:
    """What tells a run from the study's others."""
    if isinstance(entry, Measurement):
        return entry.id
    return identity(("gate", entry.trial_id, entry.recipe.id, entry.layout.id))


def name_of(entry: Measurement | GateCurves) -> str:
    """What a run is called."""
    label = entry.layout.label
    mark = " (miniature)" if entry.recipe.model.miniature_of is not None else ""
    if isinstance(entry, GateCurves):
        return f"numerics gate{', reference' if entry.is_reference else ''}: {label}{mark}"
    run = f", run {entry.repeat}" if entry.repeat else ""
    return f"{label}, MBS {entry.batch.micro_batch}{run}{mark}"


def series_of(entry: Measurement | GateCurves) -> dict[str, tuple[float, ...]]:
    """Metrics of several values. What lowered clocks is one for each reason: 1 in a window that it did so, else 0."""
    if isinstance(entry, GateCurves):
        return {name: getattr(entry, field) for field, name in GATE_SERIES.items()}
    held = {
        f"held_back_{reason.replace(' ', '_')}": tuple(float(reason in each.split(", ")) for each in entry.held_back)
        for reason in entry.held_back_by
    }
    return {name: getattr(entry, field) for field, name in SERIES.items()} | held


def gate_of(best: Measurement, history: History) -> tuple[dict[str, str], dict[str, float]]:
    """Tags and metrics that tell on the study's run whether its winner passed the numerics gate."""
    verdict = verdict_on(best.layout, best.recipe, history.gates)
    if verdict is None:
        return {"gate": "not run"}, {}
    passed = "passed" if verdict.passed else "failed"
    return {"gate": passed}, {"gate_loss_error": verdict.loss_error, "gate_norm_error": verdict.norm_error}


def tags_of(entry: Measurement | GateCurves) -> dict[str, str]:
    """What a run is found by."""
    if isinstance(entry, GateCurves):
        return {"gate": "reference" if entry.is_reference else "layout", "trial_id": entry.trial_id}
    measurement = entry
    return {
        "measurement_id": entry.id,
        "outcome": measurement.outcome.value,
        "reason": measurement.reason[:LONGEST],
        "trial_id": measurement.trial_id,
        **{name: str(getattr(measurement.layout, name)) for name in _TAGS},
    }


def params_of(entry: Measurement | GateCurves) -> dict[str, Any]:
    """Flat parameters under the entry's own field names; the model's are prefixed with `model_`."""
    recipe: dict[str, Any] = to_json(entry.recipe)
    model: dict[str, Any] = recipe.pop("model")
    model.pop("config")
    layout: dict[str, Any] = to_json(entry.layout)
    for name in _TAGS:
        layout.pop(name)
    return {
        "recipe": entry.recipe.id,
        "layout": entry.layout.label,
        "layout_id": entry.layout.id,
        "sharding": sharding(entry.layout),
        "degrees": degrees(entry.layout),
        "model": model.pop("name"),
        **{f"model_{name}": value for name, value in model.items()},
        **recipe,
        **layout,
        **(_measured(entry) if isinstance(entry, Measurement) else _gate(entry)),
    }


def _gate(curves: GateCurves) -> dict[str, Any]:
    return {"gate_steps": curves.steps, "gate_sequences": curves.sequences, "is_reference": curves.is_reference}


def _measured(measurement: Measurement) -> dict[str, Any]:
    conditions = measurement.conditions
    return {
        "outcome": measurement.outcome.value,
        **to_json(measurement.batch),
        "global_batch": measurement.global_batch,
        "num_devices": measurement.num_devices,
        "repeat": measurement.repeat,
        "measured_grad_accum": measurement.measured_grad_accum,
        "step_time_derived": measurement.step_time_derived,
        "phase": measurement.phase,
        "rank": measurement.rank,
        "cap_gib": measurement.cap_gib,
        "device": conditions.device if conditions else None,
        "num_nodes": conditions.num_nodes if conditions else None,
        "commit": conditions.commit if conditions else None,
    }


def figures_of(entry: Measurement | GateCurves) -> dict[str, float]:
    """Metrics of one value each."""
    found = {name: getattr(entry, name, None) for name in _FIGURES}
    found |= {name: math.nan for name in _COMPARED if found[name] is None}
    return {name: float(value) for name, value in found.items() if value is not None}


def as_text(value: Any) -> str:
    """A parameter's value: whole numbers without a point, so that the same value is the same text."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return str(value)[:LONGEST]
