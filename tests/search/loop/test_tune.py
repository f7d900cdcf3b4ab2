# pyright: reportPrivateUsage=false
"""The end of a Tune trial for the loop, where its process or the recorder is gone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from platform.search.loop import tune
from platform.search.loop.loop import SearchLoop
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
        killed: str = "",
        neighbours: frozenset[str] = frozenset(),
        recorder: RecorderError | None = None,
        **shown: Any,
    ) -> tuple[SimpleNamespace, Any]:
        written: list[Measurement] = []
        ends: list[dict[str, Any]] = []

        def call(actor: object, method: str, *arguments: Any, limit_s: float = 0.0) -> Any:
            if recorder is not None:
                raise recorder
            if method in ("status", "ended"):
                return STANDING
            written.append(from_json(Measurement, arguments[1]))

        loop = SimpleNamespace(
            next_job=lambda: JOB,
            neighbours=lambda trial_id: neighbours,
            on_trial_end=lambda trial_id, **options: ends.append(options),
            fault="",
            ends=ends,
        )
        context = SimpleNamespace(get_job_id=lambda: "01", get_node_id=lambda: "n1")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(tune.placement_groups, "remove_of_the_dead", lambda job_id: 0)
        monkeypatch.setattr(tune, "MemoryKills", lambda nodes: SimpleNamespace(since=lambda: killed))
        monkeypatch.setattr(tune, "_nodes", lambda ids: (["10.0.0.7" for _ in ids], []))
        monkeypatch.setattr(tune.recorders, "find", lambda name: None)
        monkeypatch.setattr(tune.recorders, "call", call)
        bridge = tune._Bridge(cast(SearchLoop, loop))
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
