# pyright: reportPrivateUsage=false
"""What a trial makes of its end: whose word counts, when its watcher gives up, where its workers are placed."""

import os
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OutOfMemoryError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from tests.samples import RECIPE, layout
from trainers import trial
from trainers.cluster import Cluster
from trainers.failures import RungFailure, classify
from trainers.job import Job
from trainers.layout import BatchPoint
from trainers.measurement import Outcome

BROKEN = RungFailure("failed", "RuntimeError: connection closed by peer", phase="forward_backward", rank=0)
MONITOR = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.7, ID: 29565) was"
    " 22.66GB used / 23.54GB limit (0.962)\nOOM kill reason: Memory usage 24331257664B exceeded the threshold"
)
"""As Ray 2.60 writes it."""


def job(cluster: Cluster) -> Job:
    """A job on that cluster."""
    on = layout(dp_shard=cluster.num_devices)
    rungs = (BatchPoint.of(RECIPE, on, 1),)
    return Job(
        trial_id="t0001", recorder="r", recipe=RECIPE, layout=on, rungs=rungs, cluster=cluster, cpus_per_worker=1.0
    )


def died(error: Exception) -> WorkerGroupError:
    """What Train raises where rank 1's process is gone and rank 0 lost its connection to it."""
    return WorkerGroupError("", {0: BROKEN, 1: WorkerHealthCheckFailedError("A worker health check failed.", error)})


class TestWhoseWordCounts:
    def test_the_memory_monitor_s_kill_is_an_oom_of_the_host(self) -> None:
        raised, dead = trial._by_rank(died(OutOfMemoryError(MONITOR)), oom_kills=0)
        verdict = classify(raised, dead=dead)
        assert (verdict.outcome, verdict.rank, verdict.silent) == (Outcome.OOM, 1, False)
        assert "host memory ran out: 1 worker" in verdict.reason and "(IP: 10.0.0.7" in verdict.reason

    def test_the_kernel_s_kill_is_told_by_its_count(self) -> None:
        raised, dead = trial._by_rank(died(ActorDiedError()), oom_kills=1)
        verdict = classify(raised, dead=dead)
        assert (verdict.outcome, verdict.rank) == (Outcome.OOM, 1)
        assert "host memory" in verdict.reason and "kernel" in verdict.reason

    def test_any_other_death_is_silent_whatever_its_text_says(self) -> None:
        """Ray's text on every lost worker names the OOM killer among the common causes."""
        raised, dead = trial._by_rank(died(ActorDiedError()), oom_kills=0)
        assert classify(raised, dead=dead).silent
        raised, dead = trial._by_rank(died(RuntimeError("exit: killed, out of memory")), oom_kills=0)
        assert classify(raised, dead=dead).silent


class Recorder:
    """In place of the actor: each call of `standing` gives, or raises, the next of `answers`."""

    def __init__(self, *answers: dict[str, Any] | Exception | None) -> None:
        self.answers = list(answers)
        self.standing = self.measured = SimpleNamespace(remote=lambda *_: self)

    def answer(self) -> Any:
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


class TestTheWatcher:
    @staticmethod
    def exit_of(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any] | Exception | None) -> int | None:
        """The exit code by which the watcher ended the process; None where the trial was over before."""

        class Exit(Exception):
            pass

        recorder = Recorder(*answers)
        over = SimpleNamespace(wait=lambda _: not recorder.answers)

        def leave(code: int) -> None:
            raise Exit(code)

        monkeypatch.setattr(os, "_exit", leave)
        monkeypatch.setattr(ray, "get", lambda ref, timeout=None: ref.answer())
        try:
            cluster = Cluster(device_kind="cpu", device="d", device_memory_gib=1.0, devices_per_node=2)
            trial._watch(job(cluster), recorder, trial.time.monotonic(), cast(threading.Event, over))
        except Exit as error:
            return error.args[0]
        return None

    def test_a_slow_recorder_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fine = {"phase": "rung", "batch": None, "overdue_s": -1.0}
        slow = (GetTimeoutError("30 s"), ActorUnavailableError("for a while", None))
        assert self.exit_of(monkeypatch, *slow, fine, *slow) is None

    def test_a_dead_recorder_ends_the_trial(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.exit_of(monkeypatch, GetTimeoutError("30 s"), ActorDiedError()) == trial.EXIT_CODE

    def test_an_overdue_rank_0_ends_it_after_a_slow_answer_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        late = {"phase": "rung", "batch": None, "overdue_s": 61.0}
        written = (late, None)  # the verdict asks where the trial stands, and writes
        assert self.exit_of(monkeypatch, GetTimeoutError("30 s"), late, *written) == trial.EXIT_CODE


@pytest.mark.parametrize(
    ("kind", "num_nodes", "strategy"), [("cuda", 1, "STRICT_PACK"), ("cuda", 2, "PACK"), ("cpu", 1, "PACK")]
)
def test_workers_that_fit_on_one_gpu_node_are_not_spread(kind: Any, num_nodes: int, strategy: str) -> None:
    cluster = Cluster(device_kind=kind, device="d", device_memory_gib=80.0, num_nodes=num_nodes, devices_per_node=2)
    trainer = trial._trainer(job(cluster), "/tmp/nowhere")
    assert trainer.scaling_config.placement_strategy == strategy
