"""The content of the MLflow run of a measurement, gate curve or profile.

Nothing here calls MLflow. All runs of a study have the same parameters: layout axes, batch point, and the fields in
which the study's recipes differ. Facts shared by the whole study are on the study's run (`study_run`).
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from platform.report.summary import days_of, limit_gib, spread_pct
from platform.tracking.series import Series, milliseconds, series_of
from trainers.records.journal import GateCurves, Profile, StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.axis import axes_of
from trainers.spec.codec import identity, to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.workload import flags_of

Entry = Measurement | GateCurves | Profile
Role = Literal["measurement", "repeat", "gate", "profile"]
"""The purpose of a run. Saved views show a point once, by its only run with the role "measurement"."""

FORMAT = "2"
"""Value of the tag `format`. Runs of another format are deleted and created again: MLflow cannot rename keys."""
LONGEST = 500
"""Longest value in characters that every MLflow server accepts."""
ABSENT = "-"
"""Value of a parameter that a run does not have, such as the micro-batch of a numerics gate."""
DIGITS = 4
"""Significant digits of a metric; repeated windows differ in the third or fourth."""

METRICS = {
    "tokens_per_s": "tokens_per_s",
    "peak_gib": "peak_allocated_gib",
    "tokens_per_s_per_gpu": "tokens_per_s_per_gpu",
    "step_s": "step_time_s",
    "tflops_per_gpu": "model_tflops_per_gpu",
    "hardware_tflops_per_gpu": "hardware_tflops_per_gpu",
    "matmul_peak_tflops": "matmul_peak_tflops",
    "datasheet_peak_tflops": "datasheet_peak_tflops",
    "utilization_pct": "utilization_pct",
    "alloc_retries": "alloc_retries",
    "idle_devices": "idle_devices",
    "load_average": "load_average",
    "peak_reserved_gib": "peak_reserved_gib",
    "peak_device_gib": "peak_device_gib",
    "peak_host_gib": "peak_host_gib",
    "peak_forward_backward_gib": "peak_forward_backward_gib",
    "peak_optimizer_gib": "peak_optimizer_gib",
    "first_micro_step_s": "first_micro_step_s",
    "middle_micro_step_s": "middle_micro_step_s",
    "last_micro_step_s": "last_micro_step_s",
    "optimizer_step_s": "optimizer_step_s",
    "startup_s": "startup_s",
    "import_s": "import_s",
    "compile_s": "compile_s",
    "oom_asked_gib": "asked_gib",
    "oom_allocated_gib": "allocated_gib",
    "oom_reserved_gib": "reserved_gib",
}
"""Field of a measurement, by metric."""
SHARES = {"share_of_peak_pct": "share_of_matmul_peak", "share_of_datasheet_peak_pct": "share_of_datasheet_peak"}
"""Fields that are shares of 1, by their metric, which MLflow shows in per cent."""
COMPARED = ("tokens_per_s", "peak_gib")
"""Metrics by which runs are compared. A run without them gets NaN: otherwise MLflow's parallel coordinates draw it
above all others, as if an out-of-memory layout were the fastest.
"""

_FINISHED = frozenset({Outcome.OK, Outcome.THRASH, Outcome.SLOW})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PredictedFigures:
    """The predicted figures of a batch point."""

    step_s: float
    peak_gib: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The content of a study's run for one entry."""

    entry_id: str
    """Identifies the run within the study."""
    name: str
    role: Role
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    series: Mapping[str, Series]
    """Metrics with several values."""
    finished: bool
    """Whether the run completed; MLflow shows others as failed."""
    started_ms: int
    ended_ms: int


def content_of(
    entry: Entry, header: StudyHeader, *, started: str, ended: str, predicted: PredictedFigures | None = None
) -> Content:
    """Returns the content of the entry's run. `started` and `ended` are ISO times of the journal."""
    started_ms, ended_ms = milliseconds(started), milliseconds(ended)
    return Content(
        entry_id=id_of(entry),
        name=_name(entry),
        role=_role(entry),
        tags={
            "study": header.name,
            "miniature": yes(entry.recipe.miniature_of is not None),
            "layout": entry.layout.label,
            "layout_id": entry.layout.id,
            "recipe": entry.recipe.id,
            "trial_id": entry.trial_id,
            **_tags(entry),
        },
        params=_params(entry, header.recipes),
        metrics=_metrics(entry, header, predicted),
        series=series_of(entry, started_ms=started_ms, ended_ms=ended_ms),
        finished=not isinstance(entry, Measurement) or entry.outcome in _FINISHED,
        started_ms=started_ms,
        ended_ms=ended_ms,
    )


def id_of(entry: Entry) -> str:
    """Returns the id of an entry within its study."""
    match entry:
        case Measurement():
            return entry.id
        case GateCurves():
            return identity(("gate", entry.trial_id, entry.recipe.id, entry.layout.id))
        case Profile():
            return identity(("profile", entry.trial_id, entry.recipe.id, entry.layout.id))


def layout_fields(layout: Layout) -> dict[str, Any]:
    """Returns the layout's axes for MLflow, with the sharding as a word and one data-parallel degree."""
    declared = axes_of(Layout)
    unknown = layout.unknown
    fields = {n: v for n, v in to_json(layout).items() if declared[n].parameter and n not in unknown}
    if unknown:
        return {**fields, **flags_of(layout.flags), "num_devices": layout.world_size}
    return {"sharding": layout.rules.sharding(layout), "dp": layout.data_parallel, **fields}


def recipe_fields(recipe: Recipe) -> dict[str, Any]:
    """Returns the recipe's fields for MLflow, without the accumulation, which belongs to the batch point.

    Facts of the model have the prefix `model_`.
    """
    recipe_json: dict[str, Any] = to_json(recipe)
    unknown = recipe.unknown
    fields = {n: recipe_json[n] for n, declared in axes_of(Recipe).items() if declared.parameter and n not in unknown}
    if recipe.workload:
        workload: dict[str, Any] = recipe_json["workload"]
        return {f"workload_{name}": value for name, value in workload.items()} | fields
    model: dict[str, Any] = recipe_json["model"]
    del model["config"]
    return {"model": model.pop("name"), **{f"model_{name}": value for name, value in model.items()}, **fields}


def varying(recipes: Sequence[Recipe]) -> frozenset[str]:
    """Returns the names of the fields in which the recipes (or points with a fixed accumulation) differ."""
    flat = [recipe_fields(recipe) for recipe in recipes]
    varying = {name for name in (flat[0] if flat else ()) if len({as_text(fields[name]) for fields in flat}) > 1}
    return frozenset(varying | ({"global_batch"} if any(recipe.grad_accum for recipe in recipes) else set[str]()))


def figures_of(measurement: Measurement, header: StudyHeader) -> dict[str, float]:
    """Returns the measurement's known figures, by metric."""
    metrics: dict[str, float | None] = {name: getattr(measurement, field) for name, field in METRICS.items()}
    metrics |= {name: _percent(getattr(measurement, field)) for name, field in SHARES.items()}
    metrics |= {
        "step_spread_pct": spread_pct(measurement),
        "headroom_gib": _headroom_gib(measurement, header),
        "days": days_of(measurement, header.tokens),
    }
    return {name: rounded(value) for name, value in metrics.items() if value is not None}


def rounded(value: float) -> float:
    """Returns the value rounded to `DIGITS` digits; integers and non-finite values are unchanged."""
    return value if isinstance(value, int) or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def as_text(value: Any) -> str:
    """Returns a parameter as text; whole numbers have no decimal point, so that equal values have equal texts."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)[:LONGEST]


def yes(flag: bool) -> str:
    return "true" if flag else "false"


def short_name(layout: Layout) -> str:
    """Returns engine, degrees, checkpointing, and the non-default values that no column of the saved views shows."""
    declared = axes_of(Layout)

    def words(*columns: str) -> list[str]:
        set_axes = {name: text for name, text in layout.axis_labels(*columns).items() if layout.is_set(name)}
        return [declared[name].short.format(getattr(layout, name)) or text for name, text in set_axes.items()]

    parts = [layout.rules.label(layout), *words("degrees", "checkpointing"), layout.replicas, *words("options")]
    return ", ".join(part for part in parts if part)


def _name(entry: Entry) -> str:
    """Returns the name of a run. Its trial distinguishes layouts with equal short names."""
    trial = f" ({entry.trial_id})" if entry.trial_id else ""
    short = short_name(entry.layout)
    match entry:
        case Measurement():
            run = f", run {entry.repeat}" if entry.repeat else ""
            return f"{short}, MBS {entry.batch.micro_batch}{run}{trial}"
        case GateCurves():
            return f"gate{' reference' if entry.is_reference else ''}: {short}{trial}"
        case Profile():
            return f"profile: {short}, MBS {entry.batch.micro_batch}{trial}"


def _role(entry: Entry) -> Role:
    match entry:
        case Measurement():
            return "repeat" if entry.repeat else "measurement"
        case GateCurves():
            return "gate"
        case Profile():
            return "profile"


def _tags(entry: Entry) -> dict[str, str]:
    match entry:
        case Measurement():
            tags = {
                "measurement_id": entry.id,
                "outcome": entry.outcome.value,
                "reason": entry.reason[:LONGEST],
                "phase": entry.phase,
                "rank": "" if entry.rank is None else str(entry.rank),
                "measured_grad_accum": str(entry.measured_grad_accum or ""),
                "step_time_derived": yes(entry.step_time_derived),
                "sdpa_kernel": entry.sdpa_kernel,
            }
            return {name: value for name, value in tags.items() if value}
        case GateCurves():
            sequences = {"gate_steps": str(entry.steps), "gate_sequences": str(entry.sequences)}
            return {"gate": "reference" if entry.is_reference else "layout", **sequences}
        case Profile():
            return {"trace": entry.trace, "device_kind": entry.device_kind, "rank": str(entry.rank)}


def _params(entry: Entry, recipes: Sequence[Recipe]) -> dict[str, str]:
    batch = None if isinstance(entry, GateCurves) else entry.batch
    fields = recipe_fields(entry.recipe)
    fields["global_batch"] = batch.global_batch(entry.layout) if batch else entry.recipe.global_batch or ABSENT
    values = {
        "outcome": entry.outcome.value if isinstance(entry, Measurement) else ABSENT,
        **layout_fields(entry.layout),
        "micro_batch": batch.micro_batch if batch else ABSENT,
        "grad_accum": batch.grad_accum if batch else ABSENT,
        "repeat": entry.repeat if isinstance(entry, Measurement) else ABSENT,
        **{name: fields[name] for name in sorted(varying(recipes))},
    }
    return {name: as_text(value) for name, value in values.items()}


def _metrics(entry: Entry, header: StudyHeader, predicted: PredictedFigures | None) -> dict[str, float]:
    metrics: dict[str, float] = {}
    match entry:
        case Measurement():
            metrics = {**dict.fromkeys(COMPARED, math.nan), **figures_of(entry, header)}
        case Profile():
            metrics |= {f"profile_{name}": rounded(value) for name, value in to_json(entry.sums).items()}
        case GateCurves():
            pass
    if predicted is not None:
        metrics |= {"predicted_step_s": rounded(predicted.step_s), "predicted_gib": rounded(predicted.peak_gib)}
    return metrics


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _headroom_gib(measurement: Measurement, header: StudyHeader) -> float | None:
    """Returns the device memory (or cap) that the peak leaves free; None without a peak."""
    peaks = (measurement.peak_device_gib, measurement.peak_reserved_gib, measurement.peak_allocated_gib)
    peak = next(itertools.filterfalse(lambda value: value is None, peaks), None)
    return None if peak is None else limit_gib(measurement, header) - peak
