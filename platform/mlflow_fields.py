"""What of a measurement goes into its run in MLflow, under which names: made for the pages that compare runs."""

import math
from typing import Any

from platform.reports.text import degrees, sharding
from trainers.codec import to_json
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


def tags_of(measurement: Measurement) -> dict[str, str]:
    """What a run is found by."""
    return {
        "measurement_id": measurement.id,
        "outcome": measurement.outcome.value,
        "reason": measurement.reason[:LONGEST],
        "trial_id": measurement.trial_id,
        **{name: str(getattr(measurement.layout, name)) for name in _TAGS},
    }


def params_of(measurement: Measurement) -> dict[str, Any]:
    """Flat parameters of a measurement under its own field names; the model's are prefixed with `model_`."""
    recipe: dict[str, Any] = to_json(measurement.recipe)
    model: dict[str, Any] = recipe.pop("model")
    model.pop("config")
    layout: dict[str, Any] = to_json(measurement.layout)
    for name in _TAGS:
        layout.pop(name)
    conditions = measurement.conditions
    return {
        "recipe": measurement.recipe.id,
        "layout": measurement.layout.label,
        "layout_id": measurement.layout.id,
        "sharding": sharding(measurement.layout),
        "degrees": degrees(measurement.layout),
        "outcome": measurement.outcome.value,
        "model": model.pop("name"),
        **{f"model_{name}": value for name, value in model.items()},
        **recipe,
        **layout,
        **to_json(measurement.batch),
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


def figures_of(measurement: Measurement) -> dict[str, float]:
    """Metrics of one value each."""
    found = {name: getattr(measurement, name) for name in _FIGURES}
    found |= {name: math.nan for name in _COMPARED if found[name] is None}
    return {name: float(value) for name, value in found.items() if value is not None}


def as_text(value: Any) -> str:
    """A parameter's value: whole numbers without a point, so that the same value is the same text."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return str(value)[:LONGEST]
