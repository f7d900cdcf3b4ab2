# pyright: reportPrivateUsage=false
"""The end of a trial: which message counts, when its watcher gives up, where its workers are placed."""

import dataclasses
import os
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
import ray.tune
from ray.exceptions import ActorDiedError, GetTimeoutError, OutOfMemoryError
from ray.train import ScalingConfig, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.scaling_policy import ResizeDecision
from ray.train.v2._internal.execution.scaling_policy.factory import create_scaling_policy

from tests.samples import RECIPE, layout
from trainers.host.failures import RungFailure, classify
from trainers.records.job import Job
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import from_json, to_json
from trainers.trial import recorder as recorders
from trainers.trial import trainable
from trainers.trial.recorder import RecorderError

BROKEN = RungFailure("failed", "RuntimeError: connection closed by peer", phase="forward_backward", rank=0)
MONITOR = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.7, ID: 29565) was"
    " 22.66GB used / 23.54GB limit (0.962)\nOOM kill reason: Memory usage 24331257664B exceeded the threshold"
)
"""The message as Ray 2.60 writes it."""


def job(cluster: Cluster) -> Job:
    """Returns a job on that cluster."""
    on = layout(dp_shard=cluster.num_devices)
    rungs = (BatchPoint.of(RECIPE, on, 1),)
    return Job(
        trial_id="t0001", recorder="r", recipe=RECIPE, layout=on, rungs=rungs, cluster=cluster, cpus_per_worker=1.0
    )


def died(error: Exception) -> WorkerGroupError:
    """Returns what Train raises where rank 1's process is gone and rank 0 lost its connection to it."""
    return WorkerGroupError("", {0: BROKEN, 1: WorkerHealthCheckFailedError("A worker health check failed.", error)})


class TestWhoseWordCounts:
    def test_the_memory_monitor_s_kill_is_an_oom_of_the_host(self) -> None:
        raised, dead = trainable.by_rank(died(OutOfMemoryError(MONITOR)))
        verdict = classify(raised, dead=dead)
        assert (verdict.outcome, verdict.rank, verdict.silent) == (Outcome.OOM, 1, False)
        assert "host memory ran out: 1 worker" in verdict.reason and "(IP: 10.0.0.7" in verdict.reason

    def test_any_other_death_is_silent_whatever_its_text_says(self) -> None:
        """Checks deaths that name the OOM killer: Ray's text on every lost worker has it among the common causes."""
        raised, dead = trainable.by_rank(died(ActorDiedError()))
        assert classify(raised, dead=dead).silent
        raised, dead = trainable.by_rank(died(RuntimeError("exit: killed, out of memory")))
        assert classify(raised, dead=dead).silent


class TestTheTrialsEnd:
    """The verdict on a trial whose workers failed with `raised` while `killed` was recorded on the hosts' memory."""

    @staticmethod
    def end_of(
        monkeypatch: pytest.MonkeyPatch, raised: WorkerGroupError, killed: str = "", nodes: tuple[str, ...] = ()
    ) -> tuple[dict[str, Any], Measurement | None]:
        """Returns what is reported to Tune, and what is written into the journal."""
        written: list[Measurement] = []
        reported: list[dict[str, Any]] = []

        def answer(actor: object, method: str, *arguments: Any, limit_s: float = 0.0) -> Any:
            if method == "status":
                return {"phase": "steps", "batch": None, "overdue_s": -1.0}
            written.append(from_json(Measurement, arguments[1]))
            return "written"

        def fit() -> None:
            raise raised

        context = SimpleNamespace(get_node_id=lambda: "of the driver")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(recorders, "find", lambda name: None)
        monkeypatch.setattr(recorders, "call", answer)
        monkeypatch.setattr(trainable, "MemoryKills", lambda nodes: SimpleNamespace(since=lambda: killed))
        monkeypatch.setattr(trainable, "_watch", lambda *_: None)
        monkeypatch.setattr(trainable.placement_groups, "remove_own", lambda: 0)
        monkeypatch.setattr(trainable, "_trainer", lambda *_: SimpleNamespace(fit=fit))
        monkeypatch.setattr(ray.tune, "report", reported.append)
        cluster = Cluster(device_kind="cpu", device="d", device_memory_gib=1.0, devices_per_node=2)
        placed = dataclasses.replace(job(cluster), nodes=nodes)
        trainable.run_trial({"job": to_json(placed), "storage": "/tmp/nowhere"})
        return reported[0], written[0] if written else None

    def test_a_peer_s_closed_connection_is_no_cause_where_memory_ran_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Checks that a closed connection is no cause: it is often seen before Ray has noted the death."""
        report, entry = self.end_of(monkeypatch, WorkerGroupError("", {0: BROKEN}), "process 7 on node 10.0.0.7: so")
        assert entry is None and (report["state"], report["rank"]) == ("failed", None)
        assert report["reason"].startswith("a process of the trial was killed because host memory ran out: process 7")

    def test_it_is_left_to_the_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Checks whole nodes of a trial's own too: a process outside the search may have filled them."""
        clause = "process 7 on node 10.0.0.7: so"
        for nodes in ((), ("of the driver", "another"), ("another",)):
            report, entry = self.end_of(monkeypatch, died(ActorDiedError()), clause, nodes)
            assert entry is None and (report["state"], report["killed"], report["rank"]) == ("failed", clause, 1)

    def test_a_dead_rank_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = "the kernel's count of such kills grew by 1"
        report, _ = self.end_of(monkeypatch, died(ActorDiedError()), kernel)
        assert report["reason"] == f"the process of rank 1 was killed because host memory ran out: {kernel}"

    def test_a_rank_s_cause_counts_before_a_kill_that_may_be_another_s(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nan = RungFailure("diverged", "the loss was nan", phase="forward_backward", rank=0)
        _, entry = self.end_of(monkeypatch, WorkerGroupError("", {0: nan}), "process 7 on node 10.0.0.7: so")
        assert entry is not None and entry.outcome is Outcome.DIVERGED

    @pytest.mark.parametrize("raised", [WorkerGroupError("", {0: BROKEN}), died(ActorDiedError())])
    def test_without_a_kill_nothing_is_known(self, monkeypatch: pytest.MonkeyPatch, raised: WorkerGroupError) -> None:
        report, entry = self.end_of(monkeypatch, raised)
        assert entry is None and report["state"] == "failed"

    def test_a_recorder_that_did_not_answer_says_nothing_of_the_layout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report, entry = self.end_of(monkeypatch, WorkerGroupError("", {0: RecorderError("no answer"), 1: BROKEN}))
        assert entry is None and (report["state"], report["reason"]) == ("failed", "no answer")


class Recorder:
    """Stands in for the actor: each call of `status` returns, or raises, the next of `answers`."""

    def __init__(self, *answers: dict[str, Any] | Exception | None) -> None:
        self.answers = list(answers)
        self.status = self.measured = SimpleNamespace(remote=lambda *_: self)

    def answer(self) -> Any:
        next_answer = self.answers.pop(0)
        if isinstance(next_answer, Exception):
            raise next_answer
        return next_answer


class TestTheWatcher:
    @staticmethod
    def exit_of(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any] | Exception | None) -> int | None:
        """Returns the exit code with which the watcher ended the process; None where the trial was over before."""

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
            trainable._watch(job(cluster), recorder, trainable.time.monotonic(), cast(threading.Event, over))
        except Exit as error:
            return error.args[0]
        return None

    def test_a_slow_recorder_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fine = {"phase": "steps", "batch": None, "overdue_s": -1.0}
        slow = (GetTimeoutError("30 s"), GetTimeoutError("30 s"))
        assert self.exit_of(monkeypatch, *slow, fine, *slow) is None

    def test_a_dead_recorder_ends_the_trial(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.exit_of(monkeypatch, GetTimeoutError("30 s"), ActorDiedError()) == trainable.EXIT_CODE

    def test_an_overdue_rank_0_ends_it_after_a_slow_answer_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        late = {"phase": "steps", "batch": None, "overdue_s": 61.0}
        written = (late, None)  # the verdict asks where the trial stands, and writes
        assert self.exit_of(monkeypatch, GetTimeoutError("30 s"), late, *written) == trainable.EXIT_CODE


@pytest.mark.parametrize(
    ("kind", "num_nodes", "strategy"), [("cuda", 1, "STRICT_PACK"), ("cuda", 2, "PACK"), ("cpu", 1, "PACK")]
)
def test_workers_that_fit_on_one_gpu_node_are_not_spread(kind: Any, num_nodes: int, strategy: str) -> None:
    cluster = Cluster(device_kind=kind, device="d", device_memory_gib=80.0, num_nodes=num_nodes, devices_per_node=2)
    trainer = trainable._trainer(job(cluster), "/tmp/nowhere")
    assert trainer.scaling_config.placement_strategy == strategy


def test_train_asks_no_autoscaler_for_what_the_driver_asked() -> None:
    """Checks that Train asks no autoscaler: there is no Ray here that could be asked."""
    trains_own = create_scaling_policy(ScalingConfig(num_workers=3))
    policy = trainable.lean({"callbacks": [], "scaling_policy": trains_own})["scaling_policy"]
    policy.after_controller_start(None)
    decision = policy.make_decision_for_non_running_worker_group()
    assert isinstance(decision, ResizeDecision) and decision.num_workers == 3
