"""The guided search stays within one trial of its plan's order, also where layouts have effects that no plan knows."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from platform.searchers.guidance import plan_order
from platform.searchers.guidance.points import PointArrays, make_points
from platform.searchers.problem import Problem
from platform.validate.published_run import PublishedRun, axes_of
from platform.validate.replaying.command import read_cells
from platform.validate.replaying.play import make, play
from platform.validate.replaying.recorded import Recorded, RecordedCell, cells

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"
SEEDS = (3, 4, 5)
"""Without the bound the search is three trials behind its plan with the first."""


def disturbed(cell: RecordedCell, seed: int) -> RecordedCell:
    """Returns the cell with an effect on the step's logarithm for each value of each axis."""
    drawn, effects = np.random.default_rng(seed), {}

    def run_of(run: PublishedRun) -> PublishedRun:
        effect = sum(effects.setdefault(value, drawn.normal(0, 0.2)) for value in axes_of(run).items())
        drawn.random()
        step_s = run.step_time_s
        return dataclasses.replace(run, step_time_s=None if step_s is None else step_s * float(np.exp(effect)))

    (result,) = cells([run_of(run) for run in cell.runs])
    return result


@pytest.fixture(scope="module")
def bloom() -> RecordedCell:
    """The recorded layouts of BLOOM-7b1 on four devices."""
    every = read_cells(sorted(MEASUREMENTS.glob("bloom7b*4xH200.csv")))[0]
    return max(every, key=lambda cell: len(cell.choices))


def problem_of(cell: RecordedCell) -> tuple[Problem[Recorded], PointArrays]:
    """Returns the cell's problem and its points."""
    problem = cell.problem(0)
    return problem, make_points(problem)


def trials(cell: RecordedCell, searcher: str) -> int:
    """Returns the number of trials until one is within 2 % of the cell's best."""
    return play(cell, make(searcher, cell, 0), len(cell.choices)).num_trials


def test_the_search_is_at_most_one_trial_behind_its_plan(bloom: RecordedCell) -> None:
    for seed in SEEDS:
        cell = disturbed(bloom, seed)
        assert trials(cell, "guided") <= trials(cell, "model") + 1, seed


def test_without_the_bound_it_falls_further_behind(bloom: RecordedCell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_order, "MOST_AHEAD", np.inf)
    cell = disturbed(bloom, SEEDS[0])
    assert trials(cell, "guided") > trials(cell, "model") + 1


def test_a_plan_without_the_rate_of_its_products_is_not_held_to(bloom: RecordedCell) -> None:
    blind = [dataclasses.replace(run, values={**run.values, "rate_sigma": 0.1}) for run in bloom.runs]
    order = [plan_order.PlanOrder(problem, points) for problem, points in map(problem_of, (bloom, *cells(blind)))]
    every = np.arange(len(bloom.choices))
    ranked = np.argsort(-problem_of(bloom)[1].log_rank)
    for each in order:
        each.add(0, int(ranked[0]))
        assert each.due(0, every) is None
        each.add(0, int(ranked[2]))
    assert [each.due(0, every) for each in order] == [ranked[1], None]
    assert order[0].due(0, every, [int(ranked[1])]) is None
