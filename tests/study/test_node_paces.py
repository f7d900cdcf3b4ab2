"""Nodes beside each other by their matmul peaks."""

import dataclasses

import pytest

from platform.study.history import History
from platform.study.node_paces import pace_of, paces_of
from platform.study.result.ranking import points, rank, winner
from tests.samples import header, measurement
from tests.search.loop.backend import CLUSTER
from trainers.records.journal import Peak
from trainers.records.journal_lines import now
from trainers.records.measurement import Measurement
from trainers.spec.cluster import Cluster

GPUS = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=2)


def peak_of(node: str, *by_device: float, precision: str = "bf16") -> Peak:
    nodes = (node,) * len(by_device)
    return Peak(at=now(), device="d", precision=precision, tflops=max(by_device), by_device=by_device, nodes=nodes)


def on_node(node: str, tokens_per_s: float, micro_batch: int = 1) -> Measurement:
    return dataclasses.replace(measurement(micro_batch=micro_batch, tokens_per_s=tokens_per_s), addresses=(node,))


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
