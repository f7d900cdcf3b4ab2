"""Nodes beside each other by their matmul peaks."""

import dataclasses
from typing import Any

import pytest

from platform.search.confirmation.held_runs import held_run
from platform.study.history import History
from platform.study.node_paces import UNKNOWN, pace_of, paces_of
from platform.study.result.beside_others import beside_others
from platform.study.result.ranking import compared, points, rank, winner
from platform.study.result.tie_break import contenders_of
from tests.samples import header, measurement
from tests.search.loop.backend import CLUSTER
from trainers.records.journal import Peak
from trainers.records.journal_lines import now
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster

GPUS = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=2)


def peak_of(node: str, *by_device: float, precision: str = "bf16") -> Peak:
    nodes = (node,) * len(by_device)
    return Peak(at=now(), device="d", precision=precision, tflops=max(by_device), by_device=by_device, nodes=nodes)


def on_node(node: str, tokens_per_s: float, micro_batch: int = 1, **fields: Any) -> Measurement:
    return measurement(micro_batch=micro_batch, tokens_per_s=tokens_per_s, addresses=(node,), **fields)


SLOW = [peak_of("a", 690.0, 600.0), peak_of("b", 700.0, 690.0), peak_of("c", 690.0, 695.0)]


def test_a_point_that_ran_on_a_slow_node_is_judged_without_it_and_its_figure_stays() -> None:
    paces = paces_of(SLOW)
    assert pace_of(on_node("a", 1.0), paces) == pytest.approx(600 / 690) and pace_of(on_node("b", 1.0), paces) == 1.0
    assert pace_of(dataclasses.replace(on_node("b", 1.0), addresses=("b", "a")), paces) < 1, "the slowest counts"
    slow, fast = on_node("a", 950.0, micro_batch=2), on_node("b", 980.0, micro_batch=4)
    assert winner([slow, fast]) is fast and winner([slow, fast], paces) is slow
    first, second = rank(points([slow, fast], paces))
    assert first.main_run is slow and first.median_tokens_per_s == 950.0
    assert second.main_run is fast


@pytest.mark.parametrize(
    "peaks", [[], SLOW[1:], [*SLOW, peak_of("a", 690.0, 690.0)], [*SLOW[1:], peak_of("a", 600.0, precision="fp32")]]
)
def test_nodes_that_are_alike_as_far_as_is_known_change_nothing(peaks: list[Peak]) -> None:
    assert not paces_of(peaks) and pace_of(on_node("a", 1.0), paces_of(peaks)) == 1.0


def test_processors_peaks_tell_what_else_runs_there() -> None:
    for cluster, number in ((GPUS, 3), (CLUSTER, 0)):
        lines = [dataclasses.replace(header("made-up", cluster=cluster), at=now()), *SLOW]
        assert len(History(lines).paces) == number


ROUNDS = [
    on_node("b" if repeat < 2 else "a", speed * (1 if repeat < 2 else 600 / 690), micro_batch, repeat=repeat)
    for micro_batch, speed, most in ((1, 1000.0, 2), (2, 990.0, 2), (4, 950.0, 1))
    for repeat in range(most + 1)
]
"""Two points with a round of runs on the slow node after one on another, and a third whose run there is missing."""


@pytest.mark.parametrize("left_out", [0, 4], ids=["a round that was cut", "the winner's last run"])
def test_runs_on_a_slow_node_cost_a_point_no_place(left_out: int) -> None:
    several = [run for run in ROUNDS if not left_out or (run.batch.micro_batch, run.repeat) not in ((2, 2), (4, 0))]
    order = rank(points(several, paces_of(SLOW)))
    assert [point.main_run.batch.micro_batch for point in order][:2] == [1, 2]
    assert rank(points(several))[0].main_run.batch.micro_batch != 1, "without paces the slow node decides"
    assert not any(point.disturbed for point in order) and contenders_of(order, ()) == []
    assert compared(order[0], order[1]).ratio == pytest.approx(1000 / 990)


def test_a_point_s_own_figure_is_held_to_the_winner_s_by_paces_too() -> None:
    full = {"outcome": Outcome.THRASH, "peak_allocated_gib": 1.0, "peak_reserved_gib": 120.0, "alloc_retries": 0}
    on_slow, winning = on_node("a", 950.0, micro_batch=2, **full), on_node("b", 980.0)
    fast, paces = points([winning, on_slow], UNKNOWN), paces_of(SLOW)
    slow = points([winning, on_slow], paces)
    assert held_run(fast, winning, attempted=frozenset()) is None
    run = held_run(slow, winning, attempted=frozenset())
    assert run is not None and run.point is on_slow
    busy = on_node("a", 800.0, micro_batch=4, others_busy_pct=(30.0,))
    named = [[point.search for point in beside_others(points([winning, busy], known))] for known in (UNKNOWN, paces)]
    assert named == [[winning, busy][1:], [busy]]
