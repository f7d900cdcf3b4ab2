# pyright: reportPrivateUsage=false
"""The end of a Tune trial for the loop, where its process or the recorder is gone."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from platform.search.loop import tune
from platform.search.loop.lanes import TUNE_CPU
from platform.search.loop.together import Together
from tests.samples import RECIPE, layout
from trainers.records.job import Job
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import from_json
from trainers.trial.recorder import RecorderError, RecorderGoneError

STANDING = {"phase": "steps", "batch": None, "nodes": ["n1", "n1"], "overdue_s": -1.0}
JOB = Job(
    trial_id="t0001",
    recorder="r",
    recipe=RECIPE,
    layout=layout(),
    rungs=(BatchPoint.of(RECIPE, layout(), 1),),
    cluster=Cluster(device_kind="cpu", device="d", device_memory_gib=1.0, devices_per_node=2),
    cpus_per_worker=1.0,
)
End = Callable[..., tuple[SimpleNamespace, list[Measurement]]]


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> End:
    """Ends a trial as Tune does; returns the loop as it is then, with `on_trial_end`'s arguments, and the journal."""

    def play(
        *,
        job: Job = JOB,
        killed: str = "",
        outside: str = "",
        neighbours: frozenset[str] = frozenset(),
        sharing: frozenset[str] = frozenset(),
        status: dict[str, Any] | None = STANDING,
        recorder: RecorderError | None = None,
        **shown: Any,
    ) -> tuple[SimpleNamespace, Any]:
        written: list[Measurement] = []
        ends: list[dict[str, Any]] = []

        def call(actor: object, method: str, *arguments: Any, limit_s: float = 0.0) -> Any:
            if recorder is not None:
                raise recorder
            if method in ("status", "ended"):
                return status
            written.append(from_json(Measurement, arguments[1]))

        loop = SimpleNamespace(
            beside=(),
            neighbours=lambda trial_id, on_its_nodes=False: sharing if on_its_nodes else neighbours,
            on_trial_end=lambda trial_id, **options: ends.append(options),
            fault="",
            ends=ends,
        )
        kills = SimpleNamespace(since=lambda: killed, neighbour=lambda has_commands: outside)
        context = SimpleNamespace(get_job_id=lambda: "01", get_node_id=lambda: "n1")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(tune.placement_groups, "remove_of_the_dead", lambda job_id: 0)
        monkeypatch.setattr(tune, "MemoryKills", lambda nodes: kills)
        monkeypatch.setattr(
            tune, "_nodes", lambda ids: ([f"address of {node}" for node in ids], [f"lost: {list(ids)}"])
        )
        monkeypatch.setattr(tune.recorders, "find", lambda name: None)
        monkeypatch.setattr(tune.recorders, "call", call)
        bridge = tune._Bridge(cast(Together, SimpleNamespace(next_job=lambda: (loop, job))))
        assert bridge.suggest("tune")
        bridge.on_trial_complete("tune", **shown)
        return loop, written

    return play


def test_a_trial_whose_own_process_was_killed_for_want_of_memory_is_out_of_memory(end: End) -> None:
    """Checks a process of which nothing is left that could record the cause: the trial would be run, and
    killed, again.
    """
    loop, (entry,) = end(killed="the kernel's count of such kills grew by 1", error=True)
    assert (entry.outcome, entry.batch, entry.phase) == (Outcome.OOM, JOB.rungs[0], "steps")
    assert entry.reason.startswith("a process of the trial was killed because host memory ran out: the kernel's count")
    assert [(trial_end["state"], trial_end["started"]) for trial_end in loop.ends] == [("failed", True)]


def test_one_that_was_killed_beside_others_is_crowded_and_nothing_is_held_against_its_layout(end: End) -> None:
    loop, written = end(
        killed="the kernel's count of such kills grew by 1", neighbours=frozenset({"t0002"}), error=True
    )
    assert not written and [(trial_end["state"], trial_end["is_crowded"]) for trial_end in loop.ends] == [
        ("failed", True)
    ]
    assert "host memory ran out" in loop.ends[0]["reason"]


@pytest.mark.parametrize("shown", [{"error": True}, {"result": {"state": "failed", "reason": "", "killed": "so"}}])
def test_one_whose_host_s_memory_a_process_outside_the_search_held_is_starved(shown: dict[str, Any], end: End) -> None:
    outside = "process 7 (python), which is none of this run's, held 214 GB there"
    loop, written = end(killed="process 8 on node 10.0.0.9: so", outside=outside, neighbours=OTHERS, **shown)
    (ended,) = loop.ends
    assert not written and (ended["state"], ended["is_starved"], ended["is_crowded"]) == ("failed", True, False)
    assert "host memory ran out" in ended["reason"] and ended["reason"].endswith(outside)


OTHERS = frozenset({"t0002"})
KILLED = {"state": "failed", "reason": "so", "rank": 1, "killed": "process 7 on node 10.0.0.9: so"}
"""The end of a trial that leaves it to the driver who is to blame."""


@pytest.mark.parametrize(
    ("nodes", "node_share", "neighbours", "sharing", "is_crowded"),
    [
        (("n1",), 1.0, OTHERS, frozenset[str](), True),  # the driver's own node, with Tune's side of the others
        (("n1",), 1.0, frozenset[str](), frozenset[str](), False),
        (("n2",), 0.5, OTHERS, frozenset[str](), False),  # the others had other nodes
        (("n2",), 0.5, OTHERS, OTHERS, True),
    ],
)
def test_memory_that_runs_out_is_shared_by_the_trials_on_that_host(
    nodes: tuple[str, ...],
    node_share: float,
    neighbours: frozenset[str],
    sharing: frozenset[str],
    is_crowded: bool,
    end: End,
) -> None:
    job = dataclasses.replace(JOB, nodes=nodes, node_share=node_share)
    loop, written = end(job=job, neighbours=neighbours, sharing=sharing, result=KILLED)
    assert loop.ends[0]["is_crowded"] is is_crowded
    assert [entry.outcome for entry in written] == ([] if is_crowded else [Outcome.OOM])


def test_a_trial_whose_workers_never_said_where_they_are_is_charged_with_its_own_nodes_alone(end: End) -> None:
    job = dataclasses.replace(JOB, nodes=("n2",))
    for status in (None, {**STANDING, "nodes": []}):
        loop, _ = end(job=job, status=status, error=True)
        assert (loop.ends[0]["nodes"], loop.ends[0]["lost_nodes"]) == ([], ["lost: ['n2']"])
    loop, _ = end(job=job, error=True)
    assert loop.ends[0]["nodes"] == ["address of n1"] * 2, "by rank"


def test_the_driver_has_room_for_tune_s_side_of_trials_on_nodes_that_join_later() -> None:
    for began, later in ((1, 64), (8, 64), (200, 200), (1000, 1000)):
        assert 0 < tune.share_of_tune(began) * later <= TUNE_CPU + 1e-9


def test_any_other_end_of_its_process_is_silent(end: End) -> None:
    loop, written = end(error=True)
    assert not written and [trial_end["state"] for trial_end in loop.ends] == ["failed"] and not loop.fault


def test_a_kill_beside_a_trial_that_says_its_end_is_not_its_cause(end: End) -> None:
    _, written = end(killed="process 7 on node 10.0.0.9: so", result={"state": "done", "reason": ""})
    assert not written


def test_a_recorder_that_is_gone_ends_the_search(end: End) -> None:
    loop, _ = end(recorder=RecorderGoneError("the study's recorder is gone"), error=True)
    assert loop.fault == "the study's recorder is gone"
    assert [(trial_end["state"], trial_end["started"]) for trial_end in loop.ends] == [("failed", False)], (
        "the trial stays to be run"
    )


def test_so_does_one_that_gives_no_answer(end: End) -> None:
    loop, _ = end(recorder=RecorderError("no answer"), result={"state": "failed", "reason": "so", "rank": None})
    assert loop.fault == "no answer" and loop.ends[0]["reason"] == "so"
