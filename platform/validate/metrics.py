"""Scores of predictions against measurements (`evaluation.Scored`): errors, ranks, regret, memory errors, coverage."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from platform.cost_model.columns import Array, Mask
from platform.validate.evaluation import STATED, Scored, cells_of
from platform.validate.row_software import STAGES
from trainers.spec.layout_axes import DATA_PARALLEL

TWINS = 1.5
AGREE = 1.1
_STAGE_AXES = ("engine", "zero_stage", *DATA_PARALLEL)
"""Axes in which twins (rows that differ only in the ZeRO stage) may differ."""
_TWIN_COLUMNS = (*STATED, "checkpoint_blocks", "checkpoint_inputs", "compression", "regathers")
_FIRST_STAGES = tuple(name for name, stage in STAGES.items() if stage <= 1)
NEAR_BEST = 1.5
"""Multiple of a cell's best time up to which a row counts as undisturbed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Scores of one cell or table; None if there is nothing to score."""

    rows_scored: int
    rows_left_out: int
    step_time_ape_median: float | None = None
    step_time_ape_mean: float | None = None
    zero_shot_ape_median: float | None = None
    """Median error of the same rows without calibration."""
    memory_ape_median: float | None = None
    rank_correlation: float | None = None
    regret_median: float | None = None
    regret_mean: float | None = None
    oom_first_choices: int = 0
    """Number of cells whose predicted best ran out of memory."""
    oom_precision: float | None = None
    oom_recall: float | None = None
    interval_coverage: float | None = None
    interval_half_width_median: float | None = None
    near_best_ape_median: float | None = None
    """Median error of the rows within `NEAR_BEST` times their cell's best; stalls of a sweep slowed the others."""
    oom_missed: int = 0
    oom_false_alarms: int = 0


def scores(scored: Scored, rows: Sequence[int], rows_left_out: int) -> Scores:
    """Returns the scores over `rows`, which may come from several cells."""
    index = np.array([row for row in rows if not scored.used[row]], dtype=int)
    timed = index[np.isfinite(scored.measured_s[index])]
    with_peaks = index[np.isfinite(scored.measured_gib[index])]
    measured, predicted = scored.measured_s[timed], scored.predicted_s[timed]
    errors = np.abs(predicted / measured - 1)
    memory_errors = np.abs(scored.predicted_gib[with_peaks] / scored.measured_gib[with_peaks] - 1)
    cells = cells_of([scored.runs[row] for row in rows])
    regrets = [
        value for positions in cells.values() if (value := regret(scored, [rows[p] for p in positions])) is not None
    ]
    oom, predicted_oom = scored.out_of_memory[index], ~scored.predicted_fits[index]
    hits = int((oom & predicted_oom).sum())
    covered = (measured >= scored.low_s[timed]) & (measured <= scored.high_s[timed])
    half_width = scored.high_s[timed] / predicted - 1
    rate = scored.rate[timed]
    return Scores(
        rows_scored=len(index),
        rows_left_out=rows_left_out,
        step_time_ape_median=_median(errors),
        step_time_ape_mean=float(errors.mean()) if len(errors) else None,
        zero_shot_ape_median=_median(np.abs(scored.zero_shot_s[timed] / measured - 1)),
        memory_ape_median=_median(memory_errors),
        near_best_ape_median=_median(errors[near_best(scored, rows)[timed]]),
        rank_correlation=spearman(rate / predicted, rate / measured),
        regret_median=_median(np.array(regrets)),
        regret_mean=float(np.mean(regrets)) if regrets else None,
        oom_first_choices=sum(
            first_choice_is_oom(scored, [rows[p] for p in positions]) for positions in cells.values()
        ),
        oom_precision=hits / int(predicted_oom.sum()) if predicted_oom.any() else None,
        oom_recall=hits / int(oom.sum()) if oom.any() else None,
        interval_coverage=float(covered.mean()) if len(covered) else None,
        interval_half_width_median=_median(half_width),
        oom_missed=int((oom & ~predicted_oom).sum()),
        oom_false_alarms=int((~oom & predicted_oom).sum()),
    )


def regret(scored: Scored, rows: Sequence[int]) -> float | None:
    """Returns the relative excess time of a cell's predicted best over its true best; None with fewer than four timed
    configurations, or if all of them were used for calibration.

    Rows that a stall may have disturbed are left out (`disturbed`), because a single run cannot show which row stalled.

    The predicted best has the least expected time among rows that are measured or predicted to fit; among all rows if
    there are none. Several rows with the same least time count with the mean of their regrets. Rows that ran out of
    memory have no time; see `first_choice_is_oom`.
    """
    away = disturbed(scored, rows)
    timed = np.array([row for row in rows if np.isfinite(scored.measured_s[row]) and row not in away], dtype=int)
    if len(timed) < 4 or scored.used[timed].all():
        return None
    fitting = timed[scored.predicted_fits[timed] | scored.used[timed]]
    among = fitting if len(fitting) else timed
    seconds = _best_known_s(scored)
    best = among[_is_least(seconds[among])]
    return float(scored.measured_s[best].mean() / scored.measured_s[timed].min() - 1)


def disturbed(scored: Scored, rows: Sequence[int]) -> frozenset[int]:
    """Returns the rows of a cell whose time differs from a twin's by more than a factor of `TWINS`. Twins differ only
    in the ZeRO stage, which cannot explain the difference: one of them stalled.
    """
    times = scored.measured_s
    return frozenset(
        row for some in _twins(scored, rows) if max(times[some]) > TWINS * min(times[some]) for row in some
    )


def agreeing(scored: Scored) -> list[int]:
    """Returns the rows whose twins' times agree within a factor of `AGREE`; few of these can have stalled."""
    times = scored.measured_s
    groups = (some for rows in cells_of(scored.runs).values() for some in _twins(scored, rows))
    return [row for some in groups if max(times[some]) < AGREE * min(times[some]) for row in some]


def _twins(scored: Scored, rows: Sequence[int]) -> Iterator[list[int]]:
    """Yields groups of at least two timed rows of a cell that differ only in the ZeRO stage (0 or 1)."""
    twins: dict[tuple[object, ...], list[int]] = {}
    for row in rows:
        run = scored.runs[row]
        if np.isfinite(scored.measured_s[row]) and run.row["strategy"] in _FIRST_STAGES:
            axes = {name: value for name, value in run.layout.items() if name not in _STAGE_AXES}
            stated = tuple(run.row.get(name, "") for name in _TWIN_COLUMNS)
            twins.setdefault((run.values["micro_batch"], *sorted(axes.items()), stated), []).append(row)
    yield from (some for some in twins.values() if len({scored.runs[row].row["strategy"] for row in some}) > 1)


def first_choice_is_oom(scored: Scored, rows: Sequence[int]) -> bool:
    """Returns whether the predicted best of a cell, among configurations with or without a time, ran out of memory."""
    index = np.array([row for row in rows if scored.out_of_memory[row] or np.isfinite(scored.measured_s[row])], int)
    fitting = index[scored.predicted_fits[index] | (scored.used[index] & ~scored.out_of_memory[index])]
    among = fitting if len(fitting) else index
    if len(among) < 2:
        return False
    seconds = _best_known_s(scored)
    return bool(scored.out_of_memory[among[_is_least(seconds[among])]].mean() > 0.5)


def near_best(scored: Scored, rows: Sequence[int] | None = None) -> Mask:
    """Returns a mask of all rows: those of the cells in `rows`, all where None, that are within `NEAR_BEST` times their
    cell's best.
    """
    result = np.zeros(len(scored.runs), dtype=bool)
    among = range(len(scored.runs)) if rows is None else rows
    for positions in cells_of([scored.runs[row] for row in among]).values():
        index = [among[position] for position in positions]
        times = scored.measured_s[index]
        if np.isfinite(times).any():
            result[index] = times <= NEAR_BEST * np.nanmin(times)
    return result


def spearman(a: Array, b: Array) -> float | None:
    """Returns the rank correlation with mean ranks for ties; None below three rows or if one array is constant."""
    from scipy.stats import spearmanr  # a slow import: --help does not wait for it

    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    correlation: Any = spearmanr(a, b)
    return float(correlation.statistic)


def _best_known_s(scored: Scored) -> Array:
    """Returns measured seconds for rows used for calibration, and expected seconds for the others."""
    return np.where(scored.used & np.isfinite(scored.measured_s), scored.measured_s, scored.expected_s)


def _is_least(values: Array) -> Mask:
    return values <= values.min() * (1 + 1e-9)


def _median(values: Array) -> float | None:
    return float(np.median(values)) if len(values) else None
