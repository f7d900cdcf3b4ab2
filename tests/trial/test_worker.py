"""The failure that a rank on a GPU reports if its engine cannot be built."""

import dataclasses
from typing import Any

import pytest

from tests.samples import RECIPE
from trainers.host.failures import RungFailure
from trainers.host.watchdog import Watchdog
from trainers.measuring.device import CudaMeter
from trainers.records.job import Job
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.trial.worker import TrialWorker

JOB = Job(
    trial_id="t0001",
    recorder="r",
    recipe=RECIPE,
    layout=Layout(engine="ddp"),
    rungs=(BatchPoint.of(RECIPE, Layout(engine="ddp"), 1),),
    cluster=Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8),
    cpus_per_worker=1.0,
)


@pytest.mark.parametrize(("offload", "outcome"), [("moments", Outcome.OOM), ("none", Outcome.FAILED)])
def test_host_memory_that_cannot_be_pinned_is_an_end_of_memory_with_the_sentence_of_who_asked(
    offload: Any, outcome: Outcome
) -> None:
    """Checks a worker without its process group, and a GPU's meter, which such an error does not ask anything."""
    worker = TrialWorker.__new__(TrialWorker)
    worker.job = dataclasses.replace(JOB, layout=Layout(engine="ddp", offload=offload))
    worker.meter, worker.phase, worker.rank = CudaMeter.__new__(CudaMeter), "init", 3
    worker.watchdog = Watchdog(floor_s=60, on_hang=lambda activity, overdue_s: None)
    sentence = "55.0 GiB of host memory cannot be pinned (CUDA error 2): choose offload none, or more shards"
    with pytest.raises(RungFailure) as raised:
        worker.fail(MemoryError(sentence))
    worker.watchdog.stop()
    failure = raised.value
    assert (failure.outcome, failure.phase, failure.rank, failure.allocated_gib) == (outcome, "init", 3, None)
    assert failure.reason == f"MemoryError: {sentence}"
