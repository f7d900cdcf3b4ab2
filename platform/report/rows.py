"""A study's tables as rows of plain values, for MLflow's pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from platform.common.text import options, stages
from platform.report.accumulations import accumulation_rows
from platform.report.batches import batch_rows
from platform.report.profile import profile_rows
from platform.report.summary import days_of
from platform.study.result.gate import gate_figures
from platform.study.result.ranking import PointRuns
from platform.study.result.result import StudyResult
from trainers.records.measurement import Measurement, Outcome

Rows = Sequence[Mapping[str, Any]]


def tables(result: StudyResult) -> dict[str, Rows]:
    """Returns rows by file name: measurements, a row a point, best first; each run of points that were run again;
    layouts not tried, and those known not to run; numerics gates; recipes that differ in their batch; where the
    winners' steps go.
    """
    tokens = result.header.tokens
    of_all = [point for recipe_result in result.measured for point in recipe_result.points]
    ordered = [point for point in of_all if point.typical.outcome is not Outcome.SKIPPED]
    ordered.sort(key=lambda point: (point.typical.recipe.id, not point.speeds, -(point.typical.tokens_per_s or 0.0)))
    skipped = [measurement for measurement in result.history.measurements if measurement.outcome is Outcome.SKIPPED]
    rows_by_name: dict[str, Rows] = {
        "measurements.json": [_of_point(point, tokens) for point in ordered],
        "runs.json": [_measured(run, tokens) for point in ordered if point.runs for run in point.all],
        "not_tried.json": _not_tried(result),
        "skipped.json": [_skipped(measurement) for measurement in skipped],
        "gates.json": _gates(result),
        "global_batches.json": batch_rows(result),
        "accumulations.json": accumulation_rows(result),
        "profile.json": profile_rows(result),
    }
    return {name: rows for name, rows in rows_by_name.items() if rows}


def _gates(result: StudyResult) -> Rows:
    """Returns a row for each layout whose numerics gate ran, with its distance from the reference."""
    rows: list[dict[str, Any]] = []
    for curves, verdict in (gate for of_recipe in result.measured for gate in of_recipe.gates):
        verdict_text = "no reference has run" if verdict is None else "passed" if verdict.passed else "failed"
        rows.append(
            {
                "layout": curves.layout.label,
                "gate": "reference" if curves.is_reference else verdict_text,
                "reference": verdict and verdict.reference.label,
                **gate_figures(verdict),
                "steps": curves.steps,
                "sequences": curves.sequences,
                "first_loss": curves.losses[0] if curves.losses else None,
                "last_loss": curves.losses[-1] if curves.losses else None,
                "trial": curves.trial_id,
                "recipe": curves.recipe.id,
            }
        )
    return rows


def _not_tried(result: StudyResult) -> Rows:
    """Returns a row for each planned layout that was not tried, with its prediction."""
    return [
        {
            "layout": planned_layout.layout.label,
            "micro_batch": planned_layout.micro_batch,
            "predicted_tokens_per_s": planned_layout.tokens_per_s,
            "predicted_step_time_s": planned_layout.step_time_s,
            "predicted_gib": planned_layout.peak_gib,
            "recipe": of_recipe.recipe.id,
        }
        for of_recipe in result.of_study
        for planned_layout in (of_recipe.coverage.not_tried if of_recipe.coverage else ())
    ]


def _point(measurement: Measurement) -> dict[str, Any]:
    recipe, layout, batch = measurement.recipe, measurement.layout, measurement.batch
    return {
        "layout": layout.label,
        "micro_batch": batch.micro_batch,
        "grad_accum": batch.grad_accum,
        "engine": layout.engine,
        "sharding": layout.rules.sharding(layout),
        "degrees": layout.degrees,
        "checkpointing": layout.checkpointing,
        "options": options(layout),
        "num_devices": measurement.num_devices,
        "seq_len": recipe.seq_len,
        "global_batch": measurement.global_batch,
        "compute_precision": recipe.compute_precision,
        "recipe": measurement.trained_recipe.id,
    }


def _skipped(measurement: Measurement) -> dict[str, Any]:
    point = _point(measurement)
    first = {name: point.pop(name) for name in ("layout", "micro_batch")}
    return {**first, "reason": measurement.reason, **point}


def _of_point(point: PointRuns, tokens: float) -> dict[str, Any]:
    row = _measured(point.typical, tokens)
    del row["repeat"]
    return {**row, "runs": len(point.runs), "std_tokens_per_s": point.std_tokens_per_s}


def _measured(measurement: Measurement, tokens: float) -> dict[str, Any]:
    point = _point(measurement)
    return {
        "outcome": measurement.outcome.value,
        **{name: point.pop(name) for name in ("layout", "micro_batch", "grad_accum")},
        "tokens_per_s": measurement.tokens_per_s,
        "step_time_s": measurement.step_time_s,
        "derived": measurement.step_time_derived,
        "repeat": measurement.repeat,
        "model_tflops_per_gpu": measurement.model_tflops_per_gpu,
        "share_of_matmul_peak": measurement.share_of_matmul_peak,
        "peak_allocated_gib": measurement.peak_allocated_gib,
        "fullest_rank": measurement.memory_rank,
        "fullest_stage": stages(measurement.memory_stages),
        "utilization_pct": measurement.utilization_pct,
        "days": days_of(measurement, tokens),
        **point,
        "reason": measurement.reason,
    }
