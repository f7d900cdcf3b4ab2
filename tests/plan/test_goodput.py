"""Days with checkpoints, restarts and failures: the formula at its limits and beside a simulation."""

import dataclasses
import json
import math
import random

import pytest

from platform.plan.__main__ import main
from platform.plan.goodput import Interruptions, elapsed, elapsed_s
from platform.plan.planned import DAY_S
from platform.plan.sizes import at_size
from tests.plan.test_plan import printed_json

SMALL = ("gpt2", "--set", "engine=ddp", "--set", "attention=sdpa")


def _elapsed_s(
    steps_s: float, mtbf_s: float, *, every_s: float = 600, stop_s: float = 5, restart_s: float = 300
) -> float:
    return elapsed_s(steps_s, mtbf_s=mtbf_s, checkpoint_every_s=every_s, checkpoint_s=stop_s, restart_s=restart_s)


def test_without_failures_checkpoints_alone_take_time() -> None:
    assert _elapsed_s(1e6, math.inf) == pytest.approx(1e6 * (1 + 5 / 600))
    assert _elapsed_s(1e6, 1e15) == pytest.approx(1e6 * (1 + 5 / 600)), "rare failures are none"
    assert _elapsed_s(1e6, math.inf, stop_s=0) == 1e6
    assert _elapsed_s(500, math.inf) == 500, "a training shorter than a segment has no checkpoint"


def test_rare_failures_cost_half_a_segment_and_a_restart_each() -> None:
    steps_s, mtbf_s = 1e6, 1e6
    lost_s = _elapsed_s(steps_s, mtbf_s, stop_s=0) - steps_s
    assert lost_s == pytest.approx(steps_s / mtbf_s * (300 + 600 / 2), rel=0.01)


def test_time_grows_with_every_cause_and_without_end() -> None:
    usual = _elapsed_s(1e6, 1e5)
    assert _elapsed_s(1e6, 5e4) > usual and _elapsed_s(1e6, 1e5, stop_s=50) > usual
    assert _elapsed_s(1e6, 1e5, restart_s=3000) > usual
    assert _elapsed_s(2e6, 1e5) == pytest.approx(2 * usual)
    assert _elapsed_s(1e6, 0.5) == math.inf, "no segment ever ends"
    by_interval = [_elapsed_s(1e6, 1e4, every_s=every, stop_s=5) for every in (30, 316, 5000)]
    assert min(by_interval) == by_interval[1], "the best interval is near the root of 2 d M (Young)"


def test_a_simulation_has_the_formula_s_mean() -> None:
    seeded = random.Random(0)
    mtbf_s, every_s, stop_s, restart_s, segments = 2000.0, 600.0, 20.0, 100.0, 4000
    clock_s, failure_s = 0.0, seeded.expovariate(1 / mtbf_s)
    for _ in range(segments):
        needed_s = every_s + stop_s
        while clock_s + needed_s > failure_s:
            clock_s, failure_s = failure_s, failure_s + seeded.expovariate(1 / mtbf_s)
            needed_s = restart_s + every_s + stop_s
        clock_s += needed_s
    expected_s = _elapsed_s(segments * every_s, mtbf_s, every_s=every_s, stop_s=stop_s, restart_s=restart_s)
    assert clock_s == pytest.approx(expected_s, rel=0.03)


def test_more_nodes_fail_more_often_and_a_stated_rate_has_no_spread() -> None:
    import search_spaces
    from platform.cost_model.hardware import find_cluster

    space = search_spaces.load("gpt2")
    cluster = find_cluster("2x8xH100")
    planned = at_size(space, space.recipe, cluster).planned
    assert planned is not None
    exact = dataclasses.replace(planned, low_s=planned.step_s, high_s=planned.step_s)
    published = elapsed(exact, space.recipe, cluster, 1e14, Interruptions())
    assert published.low_days < published.days < published.high_days and published.train_days < published.low_days
    stated = elapsed(exact, space.recipe, cluster, 1e14, Interruptions(node_mtbf_s=30 * DAY_S))
    assert stated.low_days == stated.days == stated.high_days > published.days
    assert 0 < stated.goodput < published.goodput < 1
    many = dataclasses.replace(cluster, num_nodes=256)
    assert elapsed(exact, space.recipe, many, 1e14, Interruptions()).goodput < published.goodput
    one_domain = dataclasses.replace(cluster, num_nodes=1, devices_per_node=16)
    assert elapsed(exact, space.recipe, one_domain, 1e14, Interruptions()).goodput == pytest.approx(published.goodput)


def test_a_plan_says_what_trains(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--cluster", "64x8xH100", "--tokens", "1000T", "--node-mtbf", "20d", "--restart", "30m")
    (first, *_) = printed_json(capsys, *arguments)["recipes"][0]["layouts"]  # type: ignore[index]
    assert first["days"] < first["elapsed_days"]
    assert first["elapsed_days_low"] < first["elapsed_days"] < first["elapsed_days_high"]
    assert first["goodput"] == pytest.approx(first["days"] / first["elapsed_days"])
    assert main([*arguments]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with checkpoints, restarts and failures the first takes" in shown
    assert "train: a node fails once in 20 days, a restart takes 30 min (--restart)" in shown
    sizes = printed_json(capsys, *arguments, "--gpus", "8,512")["gpus"]
    assert sizes[0]["goodput"] > sizes[1]["goodput"], json.dumps(sizes)  # type: ignore[index]
