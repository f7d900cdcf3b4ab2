"""The recorder, without Ray: where a failure is recorded, and what moves a trial's deadline."""

import dataclasses
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OutOfMemoryError

from platform.study.journal import Tail
from tests.cluster.probing.samples import probe
from tests.loopback import closed_port
from tests.samples import RECIPE, layout, measurement, profile
from trainers.records.journal import Measured, Probed, Profile, RungStart
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json
from trainers.trial.recorder import MAX_RESTARTS, Recorder, RecorderError, RecorderGoneError, call

RUNGS = tuple(BatchPoint.of(RECIPE, layout(), micro_batch) for micro_batch in (1, 2, 4))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    path.touch()  # the driver has begun it
    return path


@pytest.fixture
def recorder(journal: Path) -> Recorder:
    return started(journal)


def started(journal: Path) -> Recorder:
    """Returns the recorder as a new process has it."""
    return Recorder(str(journal), str(journal.with_name("recorder.json")))


def tell(recorder: Recorder, entry: Measurement) -> str:
    return recorder.measured("t1", to_json(entry), to_json(RUNGS))


def bad(outcome: Outcome, micro_batch: int, reason: str = "so") -> Measurement:
    return measurement(micro_batch=micro_batch, tokens_per_s=None, outcome=outcome, reason=reason)


def written(journal: Path) -> list[tuple[int, str]]:
    """Returns (micro-batch, outcome) of each measurement in the journal."""
    measured = [line.measurement for line in Tail(journal).read() if isinstance(line, Measured)]
    return [(point.batch.micro_batch, point.outcome.value) for point in measured]


def test_what_a_trial_measures_of_links_is_a_line_of_the_journal(recorder: Recorder, journal: Path) -> None:
    recorder.probed(to_json(probe()))
    assert [line.probe for line in Tail(journal).read() if isinstance(line, Probed)] == [probe()]


def test_a_hang_in_a_rung_is_the_rung_s(recorder: Recorder, journal: Path) -> None:
    tell(recorder, measurement(micro_batch=1))
    assert tell(recorder, bad(Outcome.HUNG, 2)) == "hung"
    assert written(journal) == [(1, "ok"), (2, "hung")]


def test_a_hang_between_rungs_is_the_next_rung_s(recorder: Recorder, journal: Path) -> None:
    """Checks a rank that sees the hang while it has the batch point that was written, or before it heard of that."""
    tell(recorder, measurement(micro_batch=1))
    tell(recorder, measurement(micro_batch=2))
    tell(recorder, bad(Outcome.HUNG, 2))
    assert written(journal) == [(1, "ok"), (2, "ok"), (4, "hung")]
    tell(recorder, bad(Outcome.HUNG, 2))
    assert len(written(journal)) == 3, "the other ranks see it too"


def test_a_hang_after_the_last_rung_costs_nothing(recorder: Recorder, journal: Path) -> None:
    for batch in RUNGS:
        tell(recorder, measurement(micro_batch=batch.micro_batch))
    assert tell(recorder, bad(Outcome.HUNG, 4)) == "known"
    assert written(journal) == [(1, "ok"), (2, "ok"), (4, "ok")]


def test_a_hang_in_the_gate_is_the_first_rung_s_and_nothing_of_a_trial_without_rungs(
    recorder: Recorder, journal: Path
) -> None:
    """Checks a hang in the gate, which cuts its own sequences into a batch that is no point of the recipe."""
    hung = to_json(dataclasses.replace(bad(Outcome.HUNG, 1), batch=BatchPoint(micro_batch=2, grad_accum=4)))
    assert recorder.measured("reference", hung, []) == "known" and not journal.read_text()
    assert recorder.measured("last", hung, to_json(RUNGS)) == "hung"
    assert written(journal) == [(1, "hung")]


@pytest.mark.parametrize("outcome", [Outcome.THRASH, Outcome.DIVERGED, Outcome.OOM, Outcome.FAILED])
def test_nothing_is_put_above_the_ladder_s_end(recorder: Recorder, journal: Path, outcome: Outcome) -> None:
    tell(recorder, bad(outcome, 1))
    assert tell(recorder, bad(Outcome.HUNG, 1)) == "known"
    assert tell(recorder, bad(Outcome.FAILED, 2)) == "known"
    assert written(journal) == [(1, outcome.value)]


def test_trials_are_apart(recorder: Recorder, journal: Path) -> None:
    tell(recorder, bad(Outcome.OOM, 1))
    assert recorder.measured("t2", to_json(bad(Outcome.OOM, 1)), to_json(RUNGS)) == "oom"


def test_a_promise_moves_the_deadline_and_writes_no_line(recorder: Recorder, journal: Path) -> None:
    recorder.set_status("t1", "steps", to_json(RUNGS[1]), -5.0)
    before = recorder.status("t1")
    recorder.promise("t1", 1000.0)
    after = recorder.status("t1")
    assert before is not None and after is not None
    assert before["overdue_s"] >= 5.0 and after["overdue_s"] < -990.0
    assert (after["phase"], after["batch"]) == ("steps", to_json(RUNGS[1]))
    assert [type(line) for line in Tail(journal).read()] == [RungStart]


def test_a_trace_lies_beside_the_journal_that_names_it(recorder: Recorder, journal: Path) -> None:
    recorder.profile(to_json(profile(trial_id="t7", trace="")), b"packed")
    recorder.profile(to_json(profile(trial_id="t8", trace="")), b"")
    named = [line.trace for line in Tail(journal).read() if isinstance(line, Profile)]
    assert named == ["trace-t7.json.gz", ""]
    assert (journal.parent / named[0]).read_bytes() == b"packed"
    assert not (journal.parent / "trace-t8.json.gz").exists()


@pytest.mark.parametrize("answers", [True, False])
def test_a_trial_that_waits_for_a_node_out_of_reach_has_not_hung(
    recorder: Recorder, journal: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Checks that the node's own port is asked: Ray counts a node as alive for a minute after its link was cut."""
    with closed_port() as closed, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if answers else closed
        node = {"NodeID": "n2", "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        monkeypatch.setattr(ray, "nodes", lambda: [node])
        recorder.place("t1", ["n1", "n2"])
        assert tell(recorder, bad(Outcome.HUNG, 1)) == ("hung" if answers else "cut off")
    assert written(journal) == ([(1, "hung")] if answers else [])


class TestStartedAgain:
    """Ray restarts the recorder where it died, and repeats the calls that had no answer."""

    def test_it_knows_where_trials_stand(self, recorder: Recorder, journal: Path) -> None:
        journal.touch()
        recorder.set_status("t1", "gate", None, -5.0)
        recorder.place("t1", ["n1", "n2"])
        status = started(journal).status("t1")
        assert status is not None and (status["phase"], status["nodes"]) == ("gate", ["n1", "n2"])
        assert status["overdue_s"] >= 5.0, "the time goes on while it is away"

    def test_a_rung_that_began_does_not_begin_twice(self, recorder: Recorder, journal: Path) -> None:
        recorder.set_status("t1", "steps", to_json(RUNGS[0]), 9.0)
        started(journal).set_status("t1", "steps", to_json(RUNGS[0]), 9.0)
        assert [type(line) for line in Tail(journal).read()] == [RungStart]

    def test_what_is_in_the_journal_is_not_written_twice(self, recorder: Recorder, journal: Path) -> None:
        recorder.set_status("t1", "steps", to_json(RUNGS[0]), 9.0)
        entry = to_json(measurement(micro_batch=1, trial_id="t1"))
        assert recorder.measured("t1", entry, to_json(RUNGS)) == "ok"
        assert started(journal).measured("t1", entry, to_json(RUNGS)) == "known"
        assert written(journal) == [(1, "ok")]

    def test_a_failure_goes_to_the_rung_after_the_last_that_ran_and_ends_the_ladder(
        self, recorder: Recorder, journal: Path
    ) -> None:
        recorder.set_status("t1", "steps", to_json(RUNGS[0]), 9.0)
        recorder.measured("t1", to_json(measurement(micro_batch=1, trial_id="t1")), to_json(RUNGS))
        hung = to_json(dataclasses.replace(bad(Outcome.HUNG, 1), trial_id="t1"))
        assert started(journal).measured("t1", hung, to_json(RUNGS)) == "hung"
        assert started(journal).measured("t1", hung, to_json(RUNGS)) == "known"
        assert written(journal) == [(1, "ok"), (2, "hung")]

    def test_a_line_that_was_cut_is_written_again(self, recorder: Recorder, journal: Path) -> None:
        recorder.set_status("t1", "steps", to_json(RUNGS[0]), 9.0)
        entry = to_json(measurement(micro_batch=1, trial_id="t1"))
        recorder.measured("t1", entry, to_json(RUNGS))
        journal.write_bytes(journal.read_bytes()[:-40])
        assert started(journal).measured("t1", entry, to_json(RUNGS)) == "ok"
        assert written(journal) == [(1, "ok")]


class TestCall:
    """Calls of the actor by other processes of the study; `ray.get` returns, or raises, the next of `answers`."""

    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        prepared: list[Any] = []

        def get(reference: object, timeout: float) -> Any:
            assert 0 <= timeout <= 5
            answer = prepared.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(ray, "get", get)
        return prepared

    actor = SimpleNamespace(status=SimpleNamespace(remote=lambda *_: None))

    def test_one_out_of_reach_is_asked_again(self, answers: list[Any]) -> None:
        answers += [ActorUnavailableError("cut off", None), ActorUnavailableError("cut off", None), "here"]
        assert call(self.actor, "status", "t1", limit_s=5) == "here"

    def test_one_out_of_reach_for_long_is_an_error(self, answers: list[Any]) -> None:
        answers += [ActorUnavailableError("cut off", None)] * 100
        with pytest.raises(RecorderError, match="was out of reach for 0 s"):
            call(self.actor, "status", "t1", limit_s=0.3)

    def test_no_answer_in_time_is_an_error(self, answers: list[Any]) -> None:
        answers.append(GetTimeoutError("late"))
        with pytest.raises(RecorderError, match="no answer within 5 s") as raised:
            call(self.actor, "status", "t1", limit_s=5)
        assert not isinstance(raised.value, RecorderGoneError)

    @pytest.mark.parametrize("death", [ActorDiedError(), OutOfMemoryError("low on memory")])
    def test_one_that_died_too_often_is_gone(self, answers: list[Any], death: Exception) -> None:
        answers.append(death)
        with pytest.raises(RecorderGoneError, match=f"its process died more than {MAX_RESTARTS} times"):
            call(self.actor, "status", "t1", limit_s=5)


def test_how_long_a_moment_is_away_is_told_by_the_clock_of_its_node(recorder: Recorder) -> None:
    assert 900.0 < recorder.seconds_until(time.monotonic() + 1000.0) <= 1000.0
    assert recorder.seconds_until(time.monotonic() - 5.0) <= -5.0
