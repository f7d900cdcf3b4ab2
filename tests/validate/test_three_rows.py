"""Three measured rows a cell never hurt: as tables were measured, and where steps of their machines had stalled."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.leave_one_table_out import LARGE, runs_of, software_left_out
from benchmarks.three_rows import changes
from platform.cost_model.stalls import STALL_SIGMA
from platform.validate.evaluation import cells_of
from platform.validate.published_run import PublishedRun
from tests.cost_model.points import TABLES

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"
PATHS = [
    path
    for path in sorted([*TABLES.glob("*.csv"), *MEASUREMENTS.glob("*.csv")])
    if any(len(rows) >= LARGE for rows in cells_of(runs_of(path)).values())
]


def stalled(runs: list[PublishedRun], chance: float, seed: int) -> list[PublishedRun]:
    """Returns the runs, of which each stalled with this chance."""
    draw = np.random.default_rng(seed)
    longer = np.where(draw.random(len(runs)) < chance, np.exp(np.abs(draw.normal(0, STALL_SIGMA, len(runs)))), 1.0)
    return [
        dataclasses.replace(run, step_time_s=None if run.step_time_s is None else run.step_time_s * float(factor))
        for run, factor in zip(runs, longer, strict=True)
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_cell_is_worse_with_three_rows_than_without(path: Path) -> None:
    with software_left_out(path):
        worse = [str(change) for change in changes(runs_of(path)) if change.is_worse]
    assert worse == []


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.9])
def test_what_is_chosen_is_better_where_steps_of_the_machine_stalled(chance: float) -> None:
    """Errors may grow there: of three stalled steps none tells what the others take without a stall."""
    path = TABLES / "tr3m_1b3.csv"
    with software_left_out(path):
        runs = runs_of(path)
        every = [change for seed in range(10) for change in changes(stalled(runs, chance, seed))]
    regrets, means = (np.mean([getattr(change, name) for change in every], axis=0) for name in ("regret", "mean"))
    assert regrets[1] < 0.5 * regrets[0]
    assert means[1] < 1.5 * means[0]
