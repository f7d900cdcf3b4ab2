"""A study's tables as rows of plain values, for MLflow's pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from platform.common.text import options, stages
from platform.report.accumulations import accumulation_rows
from platform.report.batches import batch_rows
from platform.report.profile import profile_rows
from platform.report.summary import days_of
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
    of_all = [point for each in result.measured for point in each.points]
    ordered = [point for point in of_all if point.typical.outcome is not Outcome.SKIPPED]
    ordered.sort(key=lambda each: (each.typical.recipe.id, not each.speeds, -(each.typical.tokens_per_s or 0.0)))
    skipped = [measurement for measurement in result.history.measurements if measurement.outcome is Outcome.SKIPPED]
    rows_by_name: dict[str, Rows] = {
        "measurements.json": [_of_point(each, tokens) for each in ordered],
        "runs.json": [_measured(run, tokens) for each in ordered if each.runs for run in each.all],
        "not_tried.json": _not_tried(result),
        "skipped.json": [_skipped(each) for each in skipped],
        "gates.json": _gates(result),
        "global_batches.json": batch_rows(result),
        "accumulations.json": accumulation_rows(result),
        "profile.json": profile_rows(result),
    }
    return {name: rows for name, rows in rows_by_name.items() if rows}


def _gates(result: StudyResult) -> Rows:
    """Returns a row for each layout whose numerics gate ran, with its distance from the reference."""
    rows: list[dict[str, Any]] = []
    for each, verdict in (gate for of_recipe in result.measured for gate in of_recipe.gates):
        verdict_text = "no reference has run" if verdict is None else "passed" if verdict.passed else "failed"
        rows.append(
            {
                "layout": each.layout.label,
                "gate": "reference" if each.is_reference else verdict_text,
                "reference": verdict and verdict.reference.label,
                "loss_error": verdict and verdict.loss_error,
                "loss_tolerance": verdict and verdict.loss_tolerance,
                "norm_error": verdict and verdict.norm_error,
                "norm_tolerance": verdict and verdict.norm_tolerance,
                "steps": each.steps,
                "sequences": each.sequences,
                "first_loss": each.losses[0] if each.losses else None,
                "last_loss": each.losses[-1] if each.losses else None,
                "trial": each.trial_id,
                "recipe": each.recipe.id,
            }
        )
    return rows


def _not_tried(result: StudyResult) -> Rows:
    """Returns a row for each planned layout that was not tried, with its prediction."""
    return [
        {
            "layout": each.layout.label,
            "micro_batch": each.micro_batch,
            "predicted_tokens_per_s": each.tokens_per_s,
            "predicted_step_time_s": each.step_time_s,
            "predicted_gib": each.peak_gib,
            "recipe": of_recipe.recipe.id,
        }
        for of_recipe in result.of_study
        for each in (of_recipe.coverage.not_tried if of_recipe.coverage else ())
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
