"""Rows predicted with what was measured of others: of the same model, and of models of other sizes."""

import dataclasses

import numpy as np
import pytest

from platform.validate.evaluation import SIZES, part, score_by_others, score_table
from platform.validate.published_run import PublishedRun, interpret
from platform.validate.rows import read_rows
from tests.cost_model.points import TABLES

RUNS = [run for run in map(interpret, read_rows(TABLES / "megatron_ten_rows.csv")) if run.step_time_s]


def of_size(run: PublishedRun, name: str) -> PublishedRun:
    """Returns the run with four times the size `name`."""
    return dataclasses.replace(run, values={**run.values, name: 4 * run.values[name]})


@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_other_sizes_learns_less_than_the_measured_one(name: str) -> None:
    run = RUNS[0]
    taught = dataclasses.replace(run, step_time_s=1.3 * float(score_table([run]).predicted_s[0]))
    scored = score_by_others([run, of_size(run, name)], [taught])
    same, other = np.log(scored.predicted_s / scored.zero_shot_s)
    assert 0 < other < 0.98 * same


def test_a_part_of_a_score_has_its_rows_in_order() -> None:
    scored = score_table(RUNS)
    some = part(scored, [3, 1])
    assert some.runs == [RUNS[3], RUNS[1]]
    assert some.predicted_s.tolist() == [scored.predicted_s[3], scored.predicted_s[1]]
