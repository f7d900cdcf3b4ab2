"""Bounds of what any prediction can reach: twins of several tables, and intervals by any chance and factor."""

import dataclasses

import numpy as np
import pytest

from benchmarks.bounds import intervals, twins
from platform.cost_model.columns import from_rows
from platform.cost_model.predict import predict
from platform.validate.published_run import PublishedRun, interpret
from platform.validate.rows import read_rows
from tests.cost_model.points import TABLES


def _runs() -> list[PublishedRun]:
    return [run for row in read_rows(TABLES / "megatron_ten_rows.csv") if (run := interpret(row)).step_time_s]


def test_twins_are_the_configurations_of_several_tables() -> None:
    runs = _runs()
    (first, *_) = runs
    other_table = [dataclasses.replace(first, step_time_s=1.25 * (first.step_time_s or 0))]
    assert twins([runs]) == []
    assert twins([runs, other_table]) == [pytest.approx(0.25)]


def test_intervals_hold_more_the_wider_they_are_and_never_what_is_far_off() -> None:
    runs = _runs()
    times = predict(from_rows([run.values for run in runs])).step.total_s
    odd = [
        dataclasses.replace(run, step_time_s=float(s) * (1 if i % 2 else 9))
        for i, (run, s) in enumerate(zip(runs, times, strict=True))
    ]
    every = intervals(odd)
    assert max(interval.held for interval in every if interval.half_width <= 0.2) == pytest.approx(
        np.mean([i % 2 for i in range(len(odd))])
    )
    assert min(interval.half_width for interval in every) < 0.05 < max(interval.half_width for interval in every)
