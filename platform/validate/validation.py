"""The report of a validation: figures over a table and by cell, a baseline's beside them, and the rows left out."""

import collections
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from platform.common.errors import InputError
from platform.validate.cells import Row
from platform.validate.evaluation import Scored, cells_of, constant_mfu, merged, score_table
from platform.validate.metrics import Scores, scores
from platform.validate.published_run import CELL, PublishedRun, interpret, label_of

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
    """The figures of one cell."""

    cell: tuple[str, ...]
    ours: Scores
    baseline: Scores
    alone: bool = True
    """Whether it differs from every other cell in more than its recipe."""

    @property
    def label(self) -> str:
        """The cell in words."""
        return label_of(self.cell, alone=self.alone)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The results of a validation."""

    overall: Scores
    baseline: Scores
    cells: tuple[CellReport, ...]
    left_out: tuple[tuple[str, int], ...]
    """(reason, rows), the most frequent first."""
    num_small: int
    """Number of configurations in cells smaller than the least size."""
    assumed: tuple[tuple[str, int], ...]
    """(assumption about what rows leave out, scored configurations), the most frequent first."""
    num_rows: int
    num_merged_away: int
    scored: Scored
    unmeasured: Scored | None
    """Rows left out only because they have no measurement: predicted, and shown among the rows."""


def validate(rows: Sequence[Row], *, num_calibrate: int = 0, min_cell: int = 1) -> Report:
    """Scores all rows that can be interpreted, in cells of at least `min_cell` configurations.

    Raises:
        InputError: none can, or no cell is so large.
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
    """The rows of a table as runs, and the reasons why some are none."""

    runs: list[PublishedRun]
    unmeasured: list[PublishedRun]
    """Runs without a measurement."""
    reasons: collections.Counter[str]
    left_out_cells: collections.Counter[tuple[str, ...]]


def _interpreted(rows: Sequence[Row]) -> _Interpreted:
    """Returns all rows, interpreted as far as possible.

    Raises:
        InputError: none can.
    """
    read = _Interpreted(runs=[], unmeasured=[], reasons=collections.Counter(), left_out_cells=collections.Counter())
    for row in rows:
        try:
            read.runs.append(interpret(row))
        except ValueError as error:
            read.reasons[str(error)] += 1
            read.left_out_cells[tuple(row.get(name, "") for name in CELL)] += 1
            with contextlib.suppress(ValueError):
                read.unmeasured.append(interpret(row, measured=False))
    if not read.runs:
        commonest = "; ".join(f"{reason} ({count} rows)" for reason, count in read.reasons.most_common(3))
        raise InputError(f"none of {len(rows)} rows can be scored: {commonest or 'the table is empty'}")
    return read


def _without_memory(baseline: Scores) -> Scores:
    """Returns the baseline's scores without intervals and memory, which a constant share does not predict."""
    return dataclasses.replace(
        baseline,
        memory_ape_median=None,
        interval_coverage=None,
        interval_half_width_median=None,
        oom_precision=None,
        oom_recall=None,
    )


def to_json(report: Report) -> dict[str, Any]:
    """Returns the report as the object that `--json` prints."""

    def figures(values: Scores) -> dict[str, Any]:
        return {key: getattr(values, key) for key in JSON_KEYS}

    return {
        "overall": figures(report.overall),
        "cells": [
            {"cell": list(cell.cell if cell.cell[-1] else cell.cell[:-1]), **figures(cell.ours)}
            for cell in report.cells
        ],
    }
