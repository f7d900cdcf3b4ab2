"""A study's tables as rows of plain values, for MLflow's pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from platform.report.accumulations import accumulation_rows
from platform.report.batches import batch_rows
from platform.report.columns import POINT, RUN, MeasuredRow, select
from platform.report.profile import profile_rows
from platform.report.table import records
from platform.study.result.gate import gate_figures
from platform.study.result.result import StudyResult
from trainers.records.measurement import Outcome

Rows = Sequence[Mapping[str, Any]]
_OF_POINT = (*(key for key in RUN if key != "repeat"), "runs", "std_tokens_per_s")
_SKIPPED = ("layout", "micro_batch", "reason", *(key for key in POINT if key not in ("layout", "micro_batch")))


def tables(result: StudyResult) -> dict[str, Rows]:
    """Returns the rows of each non-empty table, by file name.

    Tables: measurements (a row for each point, the best first), runs of confirmed points, layouts not tried, skipped
    points, numerics gates, recipes that differ in their batch or accumulation, and profiles of the winners' steps.
    """
    header = result.header
    of_all = [point for recipe_result in result.measured for point in recipe_result.points]
    ordered = [point for point in of_all if point.representative.outcome is not Outcome.SKIPPED]
    ordered.sort(
        key=lambda point: (
            point.representative.recipe.id,
            not point.speeds,
            -(point.representative.tokens_per_s or 0.0),
        )
    )
    rows = [MeasuredRow(run=point.representative, header=header, point=point) for point in ordered]
    runs = [MeasuredRow(run=run, header=header) for point in ordered if point.runs for run in point.all]
    measurements = result.history.measurements
    skipped = [MeasuredRow(run=run, header=header) for run in measurements if run.outcome is Outcome.SKIPPED]
    rows_by_name: dict[str, Rows] = {
        "measurements.json": records(select(_OF_POINT), rows),
        "runs.json": records(select(RUN), runs),
        "not_tried.json": _not_tried(result),
        "skipped.json": records(select(_SKIPPED), skipped),
        "gates.json": _gates(result),
        "global_batches.json": batch_rows(result),
        "accumulations.json": accumulation_rows(result),
        "profile.json": profile_rows(result),
    }
    return {name: rows for name, rows in rows_by_name.items() if rows}


def _gates(result: StudyResult) -> Rows:
    """Returns a row for each layout whose numerics gate ran, with its differences from the reference."""
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
