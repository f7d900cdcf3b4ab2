"""Nodes beside each other by one point's runs."""

import dataclasses
import random

import pytest

from platform.study.node_paces import pace_of, paces_of
from platform.study.result.ranking import points, rank, winner
from tests.samples import measurement
from trainers.records.measurement import Measurement


def on_node(number: int, tokens_per_s: float, micro_batch: int = 1) -> Measurement:
    ran = measurement(micro_batch=micro_batch, tokens_per_s=tokens_per_s)
    return dataclasses.replace(ran, addresses=(f"10.0.0.{number}",))


def test_a_slow_node_is_known_and_a_point_that_ran_on_it_is_judged_without_it() -> None:
    runs = [on_node(number, 1000.0 if number else 920.0) for number in range(9)]
    paces = paces_of(runs)
    assert 0.92 < pace_of(runs[0], paces) < 0.95 and pace_of(runs[1], paces) == 1.0
    slow, fast = on_node(0, 950.0, micro_batch=2), on_node(1, 980.0, micro_batch=4)
    assert winner([slow, fast]) is fast and winner([slow, fast], paces) is slow
    first, second = rank(points([slow, fast], paces))
    assert first.main_run is slow and first.median_tokens_per_s == 950.0, "the figure stays as it was measured"
    assert second.main_run is fast


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.02, 0.05])
def test_paces_bring_figures_of_unlike_nodes_nearer_to_each_other_on_average(seed: int, spread: float) -> None:
    chance = random.Random(seed)
    true = [1 + chance.uniform(-spread, spread) for _ in range(64)]
    runs = [on_node(number, 1000.0 * pace * (1 + chance.gauss(0, 0.0125))) for number, pace in enumerate(true)]
    paces = paces_of(runs)
    raw = sum((pace - 1) ** 2 for pace in true)
    corrected = sum((pace / pace_of(run, paces) - 1) ** 2 for pace, run in zip(true, runs, strict=True))
    assert corrected <= raw + 64 * 0.006**2


def test_a_disturbed_run_and_two_nodes_say_nothing() -> None:
    assert not paces_of([on_node(0, 1000.0), on_node(1, 900.0)])
    paces = paces_of([on_node(number, 500.0 if number == 3 else 1000.0 + 20 * (number % 2)) for number in range(8)])
    assert pace_of(on_node(3, 1.0), paces) == 1.0
