"""The report of a validation: scores over the table and by cell, those of a baseline, and the rows left out."""

import collections
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, TypedDict

from platform.common.errors import InputError
from platform.validate.cells import Row
from platform.validate.evaluation import Scored, cells_of, constant_mfu, merged, score_table
from platform.validate.metrics import Scores, scores
from platform.validate.published_run import CELL, PublishedRun, RowReader, label_of

JSON_KEYS = (
    "rows_scored",
    "rows_left_out",
    "step_time_ape_median",
    "step_time_ape_mean",
    "memory_ape_median",
    "rank_correlation",
    "regret_median",
    "regret_mean",
    "oom_precision",
    "oom_recall",
    "interval_coverage",
    "interval_half_width_median",
    "near_best_ape_median",
    "oom_missed",
    "oom_false_alarms",
    "oom_first_choices",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CellReport:
    """Scores of one cell."""

    cell: tuple[str, ...]
    ours: Scores
    baseline: Scores
    alone: bool = True
    """Whether the cell differs from every other cell in more than its recipe."""

    @property
    def label(self) -> str:
        return label_of(self.cell, alone=self.alone)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    overall: Scores
    baseline: Scores
    cells: tuple[CellReport, ...]
    left_out: tuple[tuple[str, int], ...]
    """(reason, number of rows), most frequent first."""
    num_small: int
    """Number of configurations in cells below the least size."""
    assumed: tuple[tuple[str, int], ...]
    """(assumption about facts that a row does not state, number of scored configurations), most frequent first."""
    num_rows: int
    num_merged_away: int
    scored: Scored
    unmeasured: Scored | None
    """Rows without a measurement that could otherwise be read: predicted, and shown among the rows."""


def validate(rows: Sequence[Row], *, num_calibrate: int = 0, min_cell: int = 1) -> Report:
    """Scores all rows that can be read as runs, in cells of at least `min_cell` configurations.

    Raises:
        InputError: no row can be read, or no cell is large enough.
    """
    read = _interpreted(rows)
    all_runs = merged(read.runs)
    sizes = collections.Counter(run.cell for run in all_runs)
    scored_runs = [run for run in all_runs if sizes[run.cell] >= min_cell]
    if not scored_runs:
        raise InputError(f"no cell has {min_cell} configurations: the largest has {max(sizes.values())}")
    ours = score_table(scored_runs, num_calibrate=num_calibrate)
    if ours.used.all():
        raise InputError(
            f"nothing is left to score: {num_calibrate} configurations are measured in each cell, and the largest has"
            f" {max(sizes.values())}; take a smaller --calibrate"
        )
    baseline = constant_mfu(ours)

    def both(positions: Sequence[int], left_out: int) -> tuple[Scores, Scores]:
        return scores(ours, positions, left_out), _without_memory(scores(baseline, positions, left_out))

    positions_of = cells_of(scored_runs)
    of_name = collections.Counter(cell[:-1] for cell in positions_of)
    cells = [
        CellReport(cell=cell, ours=our_scores, baseline=baseline_scores, alone=of_name[cell[:-1]] == 1)
        for cell, positions in positions_of.items()
        for our_scores, baseline_scores in (both(positions, read.left_out_cells[cell]),)
    ]
    cells.sort(key=lambda report: (-report.ours.rows_scored, report.cell))
    overall, overall_baseline = both(range(len(scored_runs)), read.reasons.total())
    return Report(
        overall=overall,
        baseline=overall_baseline,
        cells=tuple(cells),
        left_out=tuple(read.reasons.most_common()),
        num_small=len(all_runs) - len(scored_runs),
        assumed=tuple(
            collections.Counter(assumption for run in scored_runs for assumption in run.assumed).most_common()
        ),
        num_rows=len(rows),
        num_merged_away=len(read.runs) - len(all_runs),
        scored=ours,
        unmeasured=score_table(read.unmeasured) if read.unmeasured else None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Interpreted:
    """The rows of a table as runs, and the reasons for the other rows."""

    runs: list[PublishedRun]
    unmeasured: list[PublishedRun]
    """Runs without a measurement."""
    reasons: collections.Counter[str]
    left_out_cells: collections.Counter[tuple[str, ...]]


def _interpreted(rows: Sequence[Row]) -> _Interpreted:
    """Reads all rows as runs where possible.

    Raises:
        InputError: no row can be read.
    """
    read = _Interpreted(runs=[], unmeasured=[], reasons=collections.Counter(), left_out_cells=collections.Counter())
    reader = RowReader()
    for row in rows:
        try:
            read.runs.append(reader.run_of(row))
        except ValueError as error:
            read.reasons[str(error)] += 1
            read.left_out_cells[tuple(row.get(name, "") for name in CELL)] += 1
            with contextlib.suppress(ValueError):
                read.unmeasured.append(reader.run_of(row, measured=False))
    if not read.runs:
        commonest = "; ".join(f"{reason} ({count} rows)" for reason, count in read.reasons.most_common(3))
        raise InputError(f"none of {len(rows)} rows can be scored: {commonest or 'the table is empty'}")
    return read


def _without_memory(baseline: Scores) -> Scores:
    """Returns the baseline's scores without intervals and memory, which a constant MFU does not predict."""
    return dataclasses.replace(
        baseline,
        memory_ape_median=None,
        interval_coverage=None,
        interval_half_width_median=None,
        oom_precision=None,
        oom_recall=None,
    )


class ScoresForm(TypedDict):
    """Scores of predictions against measurements; null if there is nothing to score. Errors are relative."""

    rows_scored: int
    """Number of scored configurations."""
    rows_left_out: int
    """Number of rows that cannot be read as runs."""
    step_time_ape_median: float | None
    """Median error of the step time."""
    step_time_ape_mean: float | None
    """Mean error of the step time."""
    memory_ape_median: float | None
    """Median error of the memory."""
    rank_correlation: float | None
    """Spearman's rank correlation of speeds."""
    regret_median: float | None
    """Relative extra time of the predicted best over the true best, median over cells."""
    regret_mean: float | None
    """Relative extra time of the predicted best over the true best, mean over cells."""
    oom_first_choices: int
    """Number of cells whose predicted best ran out of memory."""
    oom_precision: float | None
    """Share of predicted out-of-memory errors that were measured."""
    oom_recall: float | None
    """Share of measured out-of-memory errors that were predicted."""
    interval_coverage: float | None
    """Share of step times within their 80 % interval."""
    interval_half_width_median: float | None
    """Median half width of the interval."""
    near_best_ape_median: float | None
    """Median error of the rows near the best of their cell."""
    oom_missed: int
    """Number of measured out-of-memory errors that were not predicted."""
    oom_false_alarms: int
    """Number of predicted out-of-memory errors that did not happen."""


class CellForm(ScoresForm):
    """The scores of one cell."""

    cell: list[str]
    """Model, device, number of devices, sequence length, global batch, and the recipe if the table names it."""


class ValidationForm(TypedDict):
    """A validation."""

    overall: ScoresForm
    """Scores over all cells."""
    cells: list[CellForm]
    """Scores by cell."""


def to_json(report: Report) -> dict[str, Any]:
    """Returns the report as the JSON object that `--json` prints."""

    def figures(values: Scores) -> dict[str, Any]:
        return {key: getattr(values, key) for key in JSON_KEYS}

    return {
        "overall": figures(report.overall),
        "cells": [
            {"cell": list(cell.cell if cell.cell[-1] else cell.cell[:-1]), **figures(cell.ours)}
            for cell in report.cells
        ],
    }
