"""The reference point's runs on nodes that are unlike."""

import dataclasses

import pytest

from platform.search.loop.references import References
from platform.study.history import History
from tests.samples import header, measurement
from tests.search.loop.backend import CLUSTER
from trainers.records.journal import Line, Measured, Paced, Peak
from trainers.records.journal_lines import now
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster

GPUS = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=2)


def history_on(*peaks: float, cluster: Cluster = GPUS) -> History:
    """Returns a study of which each node has run one layout."""
    lines: list[Line] = [header("made-up", cluster=cluster)]
    lines += [Peak(device="d", precision="bf16", tflops=peak, nodes=(f"n{place}",)) for place, peak in enumerate(peaks)]
    lines += [Measured(measurement=ran(place, micro_batch=2**place)) for place, _ in enumerate(peaks)]
    return History(dataclasses.replace(line, at=now()) for line in lines)


def ran(node: int, micro_batch: int) -> Measurement:
    return dataclasses.replace(measurement(micro_batch=micro_batch), addresses=(f"n{node}",), outcome=Outcome.OK)


def test_each_of_unlike_nodes_runs_the_first_point_that_ran_once() -> None:
    history, references = history_on(700.0, 690.0, 600.0), References()
    assert references.due(history, ["n0"], num_layouts=90, num_lanes=3) is None, "it ran there"
    for node in ("n1", "n2"):
        due = references.due(history, [node], num_layouts=90, num_lanes=3)
        assert due is not None and due.paces and [point.micro_batch for point in due.rungs] == [1]
        assert references.due(history, [node], num_layouts=90, num_lanes=3) is None, "once"
    history.extend([Paced(at=now(), measurement=ran(1, 1))])
    assert References().due(history, ["n1"], num_layouts=90, num_lanes=3) is None, "in an earlier session"
    assert References().due(history, ["n2"], num_layouts=3, num_lanes=3) is not None, "begun is begun"
    assert [run.addresses for run in history.paced] == [("n1",)] and len(history.measurements) == 3


@pytest.mark.parametrize(
    ("history", "num_layouts", "num_lanes"),
    [
        (history_on(700.0, 690.0), 90, 2),
        (history_on(700.0, 500.0), 3, 2),
        (history_on(700.0, 500.0), 90, 1),
        (history_on(0.7, 0.5, cluster=CLUSTER), 90, 2),
        (history_on(), 90, 2),
    ],
)
def test_nothing_is_paid_where_nodes_are_alike_or_little_is_left(
    history: History, num_layouts: int, num_lanes: int
) -> None:
    assert References().due(history, ["n1"], num_layouts=num_layouts, num_lanes=num_lanes) is None
