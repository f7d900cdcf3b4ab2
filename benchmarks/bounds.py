"""Bounds of what predictions can reach on measured tables.

python -m benchmarks.bounds TABLE.csv [TABLE.csv ...]

- Twins: how far apart steps of one configuration are in different tables. One prediction for all of them, by whatever
  formulas, is off by half of that at least.
- Intervals, for each table: the least median half-width that holds 70 % of the steps, and the most that intervals of a
  median half-width of 20 % hold, over any chance of a stall a node and any factor on all deviations. They bound
  intervals of the cost model's form around its medians, no others.
"""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.leave_one_table_out import runs_of
from platform.cost_model.columns import Array, Columns, from_rows
from platform.cost_model.predict import predict
from platform.cost_model.stalls import interval, stall_chance
from platform.validate.evaluation import STATED
from platform.validate.published_run import PublishedRun

CHANCES = (*np.arange(0, 0.01, 0.001), 0.0125, 0.015, 0.02, 0.03, 0.05)
FACTORS = np.arange(0.2, 3.0, 0.02)
HOLD, HALF_WIDTH = 0.7, 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Intervals of a table's steps by one chance of a stall a node and one factor on their deviations."""

    half_width: float
    """The median over the steps."""
    held: float
    """Share of the steps."""


def twins(tables: Sequence[Sequence[PublishedRun]]) -> list[float]:
    """Returns, for each configuration of several tables, its slowest step over its fastest, less 1."""
    times: dict[object, list[float]] = {}
    for run in (run for table in tables for run in table if run.step_time_s is not None):
        stated = tuple(run.row.get(name, "") for name in STATED)
        key = (run.cell, run.cluster.name, stated, tuple(sorted(run.values.items())))
        times.setdefault(key, []).append(run.step_time_s or 0.0)
    return [max(time_) / min(time_) - 1 for time_ in times.values() if len(time_) > 1]


def intervals(runs: Sequence[PublishedRun]) -> list[Interval]:
    """Returns the intervals by every chance and factor."""
    timed = [run for run in runs if run.step_time_s is not None]
    columns = from_rows([run.values for run in timed])
    prediction = predict(columns)
    seconds = prediction.step.total_s
    ratios = np.log(np.array([run.step_time_s for run in timed]) / seconds)
    longer = prediction.stalled_s / seconds
    return [
        _interval(ratios, factor * prediction.sigma, stalls, np.where(stalls > 0, longer, 0.0))
        for stalls in (_stalls(columns, float(chance)) for chance in CHANCES)
        for factor in FACTORS
    ]


def _stalls(columns: Columns, chance: float) -> Array:
    return stall_chance(Columns.of({**columns.arrays(), "stall_chance": np.full(columns.shape, chance)}))


def _interval(ratios: Array, sigma: Array, stalls: Array, longer: Array) -> Interval:
    low, high = interval(sigma, stalls, longer)
    held = (ratios >= low) & (ratios <= high)
    return Interval(half_width=float(np.median(np.expm1(high))), held=float(held.mean()))


def main() -> None:
    """Prints a line for the twins of all tables, and one for each table's intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    paths = parser.parse_args().tables
    tables = [runs_of(path) for path in paths]
    if apart := twins(tables):
        median, worst = statistics.median(apart), max(apart)
        print(
            f"{len(apart)} configurations are in several tables, {median:.1%} apart in the median, {worst:.1%} at most"
        )
    for path, runs in zip(paths, tables, strict=True):
        every = intervals(runs)
        least = min((bound.half_width for bound in every if bound.held >= HOLD), default=math.inf)
        held = max((bound.held for bound in every if bound.half_width <= HALF_WIDTH), default=0.0)
        print(
            f"{path.name}: half-width {least:.1%} holds {HOLD:.0%} of the steps, half-width {HALF_WIDTH:.0%} {held:.1%}"
        )


if __name__ == "__main__":
    main()
