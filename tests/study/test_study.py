"""The study's folder: names, the lock, and the state a resumed search starts from."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from platform.common.errors import ClusterError, InputError
from platform.study import history as histories
from platform.study import journal
from platform.study.folder import located, studies_option
from platform.study.history import History
from platform.study.study import Study, check_name, find, fresh_name, names, read
from platform.train.target import read_target
from search_spaces.candidate import Candidate
from tests.samples import CLUSTER, RECIPE, header, layout, measurement, oom, skipped
from trainers.records.journal import End, Line, Measured, Peak, Resume, RungStart, TrialEnd, TrialStart
from trainers.records.journal_lines import from_line
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout

ROOT = Path(__file__).parents[2]


def _at(second: float) -> str:
    return f"2026-01-01T00:{int(second) // 60:02d}:{second % 60:06.3f}+00:00"


def _candidate(on: Layout, *micro_batches: int) -> Candidate:
    return Candidate(recipe=RECIPE, layout=on, micro_batches=micro_batches)


def _start(trial_id: str, candidate: Candidate, second: float) -> TrialStart:
    return TrialStart(
        at=_at(second),
        trial_id=trial_id,
        key=candidate.key,
        recipe=candidate.recipe,
        layout=candidate.layout,
        micro_batches=candidate.micro_batches,
    )


def _rung(trial_id: str, micro_batch: int, second: float) -> RungStart:
    batch = BatchPoint.of(RECIPE, layout(), micro_batch)
    return RungStart(at=_at(second), trial_id=trial_id, batch=batch, deadline_s=60)


def test_a_study_is_made_once_found_by_name_and_taken_up_again(tmp_path: Path) -> None:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
    assert names(tmp_path) == ["one"]
    with pytest.raises(InputError, match="--resume one"):
        Study.create(tmp_path, "one")
    resumed, history, sentence = Study.resume(tmp_path, "one")
    resumed.close()
    assert history.header is not None and history.header.name == "one"
    assert sentence == ""


def test_a_folder_without_a_journal_is_not_a_study(tmp_path: Path) -> None:
    Study.create(tmp_path, "one").close()
    assert names(tmp_path) == []
    with pytest.raises(InputError, match="no studies yet"):
        Study.resume(tmp_path, "one")
    Study.create(tmp_path, "one").close()


def test_a_study_in_which_nothing_was_recorded_leaves_nothing(tmp_path: Path) -> None:
    Study.create(tmp_path / "a" / "studies", "one").close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("not to be lost")
    Study.create(tmp_path, "mine").close()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_an_unknown_name_is_answered_with_near_ones(tmp_path: Path) -> None:
    for name in ("bloom7b-1", "gpt2-1"):
        with Study.create(tmp_path, name) as study:
            study.record(header(name))
    with pytest.raises(InputError, match=r"did you mean bloom7b-1\?"):
        find(tmp_path, "blom7b-1")
    with pytest.raises(InputError, match="there are bloom7b-1, gpt2-1"):
        find(tmp_path, "zzz")
    with pytest.raises(InputError, match="no study"):
        find(tmp_path, "../" + tmp_path.name + "/bloom7b-1")


def test_a_study_is_meant_by_its_name_or_by_the_path_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
    monkeypatch.chdir(tmp_path)
    assert find(*located(tmp_path, "one")) == tmp_path / "one"
    for text in (str(tmp_path / "one"), f"{tmp_path}/one/", "./one"):
        assert find(*located(Path("elsewhere"), text)) == tmp_path / "one"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "x" * 65, "a\n", "é", "mlflow.db"])
def test_what_cannot_name_a_study_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a study"):
        check_name(name)


def test_fresh_names_are_free_and_allowed(tmp_path: Path) -> None:
    assert fresh_name(tmp_path, "bloom7b") == "bloom7b-1"
    with Study.create(tmp_path, "bloom7b-1") as study:
        study.record(header())
    assert fresh_name(tmp_path, "bloom7b") == "bloom7b-2"
    for space in ("/home/me/space.py", "...", "x" * 200):
        check_name(fresh_name(tmp_path, space))


def test_every_command_that_is_suggested_finds_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks sentences of the running program, and that no other module writes a name behind a command."""
    studies = tmp_path / "my studies"
    option = f" --studies '{studies}'"
    with Study.create(studies, "one") as study:
        study.record(header("one"))
        with pytest.raises(InputError, match="exists already") as refused:
            Study.check_free(studies, "one")
        (studies / "one" / "journal.jsonl").rename(studies / "away")
        with pytest.raises(ClusterError, match="bring it back") as gone:
            study.record(Measured(measurement=measurement()))
        (studies / "away").rename(studies / "one" / "journal.jsonl")
    with pytest.raises(InputError, match="has no winner to train") as no_winner:
        read_target("one", studies, None)
    for raised in (refused, gone, no_winner):
        assert f"--resume one{option}" in str(raised.value)
    monkeypatch.chdir(tmp_path)
    assert studies_option(tmp_path / "studies") == ""
    named = re.compile(r"(--resume|platform\.(search|report)) \{(?!options\.resume|name\} goes on)")
    for path in (ROOT / "platform").rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not named.search(line) or "studies_option(" in line, f"{path}:{number}"


def test_two_drivers_never_write_one_study(tmp_path: Path) -> None:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        code = "import conftest, sys, pathlib\nfrom platform.study.study import Study\n"
        code += "Study.resume(pathlib.Path(sys.argv[1]), 'one')"
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
        assert "InputError: the study 'one' is being run by process" in other.stderr
        with pytest.raises(InputError, match="being run by process"):
            Study.resume(tmp_path, "one")
    Study.resume(tmp_path, "one")[0].close()


def test_a_session_s_end_is_its_last_line(tmp_path: Path) -> None:
    """Checks a trial whose end one thread sees while another one has written the session's."""
    with Study.create(tmp_path, "one") as study:
        for line in (header("one"), End(exit_code=3, wall_s=1.0, gpu_s=1.0), Measured(measurement=measurement())):
            study.record(line)
    with Study.resume(tmp_path, "one")[0] as study:
        for line in (Resume(), Measured(measurement=measurement())):
            study.record(line)
        history = study.follow()[1]
    assert [line.kind for line in journal.Tail(study.journal).read()] == ["study", "end", "resume", "measurement"]
    assert history.sessions == 2 and len(history.measurements) == 1


def test_a_killed_driver_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import conftest, os, sys, pathlib, signal\n"
        "from platform.study.study import Study\nfrom tests.samples import header\n"
        "Study.create(pathlib.Path(sys.argv[1]), 'one').record(header('one'))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT).returncode == -9
    Study.resume(tmp_path, "one")[0].close()


def test_a_resumed_journal_is_understood_once_and_given_to_every_reader_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = _candidate(layout(), 1, 2), _candidate(layout(prefetch=2), 1)
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        study.record(_start("t0001", first, 1))
        study.record(Measured(measurement=measurement(micro_batch=1)))
        study.record(TrialEnd(trial_id="t0001", key=first.key, state="interrupted", wall_s=3.0, gpu_s=24.0))
    with Study.resume(tmp_path, "one")[0] as study:
        study.record(_start("t0002", other, 9))
        read_anew, _ = read(study.path)
        understood: list[object] = []
        monkeypatch.setattr(journal, "from_line", lambda line: understood.append(line) or from_line(line))
        tail, history = study.follow()
        assert len(understood) == 1  # what came after the resumption
        assert (history.measurements, history.trials) == (read_anew.measurements, read_anew.trials)
        assert (history.gpu_s, history.last_at, history.last_trial_number) == (read_anew.gpu_s, read_anew.last_at, 2)
        assert history.missing(first) == read_anew.missing(first) == (2,)
        study.record(Measured(measurement=measurement(on=other.layout, micro_batch=1)))
        history.extend(tail.read())
        assert len(history.measurements) == 2 and len(study.follow()[1].measurements) == 2
        assert len(read_anew.measurements) == 1 and tail.read() == []
        assert [line.kind for line in study.from_start().read()] == [
            *("study", "trial_start", "measurement", "trial_end"),
            *("trial_start", "measurement"),
        ]


def test_what_a_candidate_lacks_is_told_without_going_through_others(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History([header("one", at=_at(0)), Measured(at=_at(1), measurement=measurement(micro_batch=1))])
    monkeypatch.setattr(histories, "key_of", None)
    assert history.missing(_candidate(layout(), 1, 2)) == (2,)
    assert history.measured(_candidate(layout(), 1).key) == history.measurements


def test_a_journal_without_a_first_line_is_refused(tmp_path: Path) -> None:
    with Study.create(tmp_path, "one") as study:
        study.journal.write_text('{"kind": "study", "name"')
    with pytest.raises(InputError, match="does not begin with a study's first line"):
        Study.resume(tmp_path, "one")


def test_resume_says_what_it_set_aside_and_uses_the_rest(tmp_path: Path) -> None:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        study.record(Measured(measurement=measurement()))
        study.record(Measured(measurement=measurement(micro_batch=2)))
        study.journal.write_bytes(study.journal.read_bytes()[:-100])
    assert len(read(tmp_path / "one")[0].measurements) == 1
    assert not (tmp_path / "one" / "journal.rejected.jsonl").exists()
    resumed, history, sentence = Study.resume(tmp_path, "one")
    resumed.record(Resume())
    resumed.close()
    assert [point.batch.micro_batch for point in history.measurements] == [1]
    assert "Line 3" in sentence
    again, history, sentence = Study.resume(tmp_path, "one")
    again.close()
    assert history.sessions == 2 and "Line 3" in sentence


def test_the_first_durable_measurement_of_an_id_stays() -> None:
    first, second = measurement(tokens_per_s=1000.0), measurement(tokens_per_s=2000.0)
    other = measurement(repeat=1)
    history = History([Measured(at=_at(n), measurement=point) for n, point in enumerate((first, second, other))])
    assert history.measurements == (first, other)


def test_a_trial_counts_with_its_longest_rung_alone_and_beside_its_steps() -> None:
    """Checks a trial of three rungs (36 of its 50 s were steps) and one of a single rung (12 of its 25 s were)."""
    first, other = layout(), layout(prefetch=2)
    steps = {1: (4.0, 2.0, 2.0), 2: (8.0, 4.0, 4.0), 4: (6.0, 3.0, 3.0)}
    rungs = [measurement(micro_batch=n, step_times_s=step_times) for n, step_times in steps.items()]
    single = measurement(on=other, trial_id="t2", step_times_s=(6.0, 3.0, 3.0))
    history = History([header(at=_at(0)), *(Measured(at=_at(1), measurement=rung) for rung in (*rungs, single))])
    assert (history.start_s, history.trial_s) == (0.0, 0.0), "none has ended"
    trial_end = TrialEnd(at=_at(2), trial_id="t1", key=_candidate(first, 1).key, state="done", wall_s=50.0, gpu_s=0.0)
    history.extend([trial_end])
    assert (history.start_s, history.trial_s) == (14.0, 30.0)
    history.extend([dataclasses.replace(trial_end, trial_id="t2", wall_s=25.0)])
    assert (history.start_s, history.trial_s) == (13.0, 25.0)
    history.extend([dataclasses.replace(trial_end, trial_id="t3", wall_s=5.0)])
    assert history.trial_s == 25.0, "one that measured nothing does not count beside those that did"


def test_a_short_trial_starts_as_the_later_ones_do() -> None:
    """Checks a first trial that took 20 s to start for a rung of 8 s, and a last run that took 5 s for one of 40 s."""
    first = measurement(step_times_s=(4.0, 2.0, 2.0))
    last = measurement(trial_id="t2", repeat=1, step_times_s=(20.0, 10.0, 10.0))
    history = History([header(at=_at(0)), *(Measured(at=_at(1), measurement=point) for point in (first, last))])
    trial_end = TrialEnd(
        at=_at(2), trial_id="t1", key=_candidate(layout(), 1).key, state="done", wall_s=28.0, gpu_s=0.0
    )
    history.extend([trial_end, dataclasses.replace(trial_end, trial_id="t2", wall_s=45.0)])
    assert history.trial_s == 5.0 + 8.0


def test_a_usual_trial_is_no_shorter_because_slow_layouts_were_stopped_early() -> None:
    """Checks trials that take 5 s to start, for rungs of 8, 20 and 22 s: the next one is expected to take 25 s."""
    rungs = [
        measurement(on=layout(prefetch=n), trial_id=f"t{n}", step_times_s=(seconds, 2.0, 2.0))
        for n, seconds in ((1, 16.0), (2, 4.0), (3, 18.0))
    ]
    end = TrialEnd(at=_at(2), trial_id="t1", key=_candidate(layout(), 1).key, state="done", wall_s=25.0, gpu_s=0.0)
    ends = [
        dataclasses.replace(end, trial_id=f"t{n}", wall_s=wall_s) for n, wall_s in ((1, 25.0), (2, 13.0), (3, 27.0))
    ]
    history = History([header(at=_at(0)), *(Measured(at=_at(1), measurement=rung) for rung in rungs), *ends])
    assert history.trial_s == 25.0


@pytest.mark.parametrize(("kind", "start_s"), [("cuda", 10.0), ("cpu", 20.0)])
def test_later_starts_are_shorter_than_the_first_one_on_gpus(kind: Literal["cuda", "cpu"], start_s: float) -> None:
    """Checks a first trial that took 20 s to start, alone and before one that took 5 s."""
    started = dataclasses.replace(CLUSTER, device_kind=kind)
    candidate = _candidate(layout(), 1)
    steps = [
        measurement(trial_id=trial_id, repeat=n, step_times_s=(4.0, 2.0, 2.0))
        for n, trial_id in enumerate(("t1", "t2"))
    ]
    lines: list[Line] = [header(at=_at(0), cluster=started), _start("t1", candidate, 1)]
    history = History([*lines, *(Measured(at=_at(2), measurement=step) for step in steps)])
    trial_end = TrialEnd(at=_at(30), trial_id="t1", key=candidate.key, state="done", wall_s=28.0, gpu_s=0.0)
    history.extend([trial_end])
    assert (history.first_start_s, history.start_s, history.trial_s) == (20.0, start_s, start_s + 8.0)
    history.extend([dataclasses.replace(trial_end, trial_id="t2", wall_s=13.0)])
    assert (history.first_start_s, history.start_s, history.trial_s) == (20.0, 5.0, 13.0)


def test_what_is_missing_after_a_kill() -> None:
    finished, cut, ended, fresh = (
        _candidate(layout(checkpointing=checkpointing, attention=attention), 1, 2, 4)
        for checkpointing in ("none", "full")
        for attention in ("eager", "sdpa")
    )
    entries: list[Line] = [
        header(at=_at(0)),
        _start("t1", finished, 1),
        TrialEnd(at=_at(5), trial_id="t1", key="of an older version", state="done", wall_s=4, gpu_s=16),
        _start("t2", cut, 6),
        _rung("t2", 1, 7),
        Measured(at=_at(8), measurement=measurement(on=cut.layout)),
        _rung("t2", 2, 9),
        Resume(at=_at(20)),
        _start("t3", ended, 21),
        Measured(at=_at(22), measurement=oom(on=ended.layout, micro_batch=2)),
        TrialEnd(at=_at(23), trial_id="t3", key=ended.key, state="interrupted", wall_s=2, gpu_s=8),
    ]
    history = History(entries)
    assert history.finished == {finished.key}
    assert history.missing(finished) == ()
    assert history.missing(cut) == (2, 4)
    assert history.missing(ended) == (1,)
    assert history.missing(fresh) == (1, 2, 4)
    assert [point.outcome for point in history.measured(ended.key)] == [Outcome.OOM]
    assert (history.num_lost(cut.key, 1), history.num_lost(cut.key, 2)) == (0, 1)
    assert (history.attempts(cut.key), history.attempts(fresh.key)) == (1, 0)


@pytest.mark.parametrize("outcome", [Outcome.SLOW, Outcome.OK])
def test_an_outcome_that_leaves_room_does_not_end_the_ladder(outcome: Outcome) -> None:
    candidate = _candidate(layout(), 1, 2)
    history = History([Measured(at=_at(1), measurement=measurement(outcome=outcome))])
    assert history.missing(candidate) == (2,)


def test_what_was_skipped_may_be_run_after_all() -> None:
    history = History([Measured(at=_at(1), measurement=skipped())])
    assert history.missing(_candidate(layout(), 1, 2)) == (1, 2)
    history.extend([Measured(at=_at(2), measurement=measurement()), Measured(at=_at(3), measurement=skipped())])
    assert [point.outcome for point in history.measurements] == [Outcome.OK]
    assert history.missing(_candidate(layout(), 1, 2)) == (2,)


def test_a_point_by_its_name_is_the_same_candidate() -> None:
    named = Candidate(recipe=RECIPE, layout=layout(), micro_batches=(1, 2), name="zs-3_fp16")
    entries: list[Line] = [
        _start("t1", _candidate(layout(), 1), 1),
        Measured(at=_at(2), measurement=measurement()),
        TrialEnd(at=_at(3), trial_id="t1", key="k", state="done", wall_s=1, gpu_s=4),
    ]
    history = History(entries)
    assert history.missing(named) == (2,)  # the finished trial had only the first
    assert len(history.measured(named.key)) == 1 and history.attempts(named.key) == 1


def test_what_a_finished_trial_left_out_is_not_missing() -> None:
    candidate = _candidate(layout(), 1, 2, 4)
    entries: list[Line] = [_start("t1", candidate, 1), Measured(at=_at(2), measurement=measurement())]
    history = History(entries)
    assert history.missing(candidate) == (2, 4)
    history.extend([TrialEnd(at=_at(3), trial_id="t1", key="k", state="done", wall_s=1, gpu_s=4)])
    assert history.missing(candidate) == ()


def test_what_was_spent_counts_killed_sessions_and_trials() -> None:
    candidate = _candidate(layout(), 1, 2)
    history = History([header(at=_at(0)), _start("t1", candidate, 10), _rung("t1", 1, 16)])
    assert (history.wall_s, history.gpu_s) == (16.0, 6.0 * 4)
    history.extend([Resume(at=_at(100)), _start("t2", candidate, 101)])
    assert (history.wall_s, history.gpu_s) == (17.0, 24.0)
    assert history.end is None and history.sessions == 2
    history.extend([TrialEnd(at=_at(111), trial_id="t2", key=candidate.key, state="done", wall_s=10, gpu_s=40)])
    history.extend([End(at=_at(112), exit_code=0, wall_s=12, gpu_s=40)])
    assert (history.wall_s, history.gpu_s) == (28.0, 64.0)
    assert history.end is not None and history.end.exit_code == 0


def test_the_last_measured_peak_of_a_precision_counts() -> None:
    peaks = [
        Peak(at=_at(n), device="d", precision=precision, tflops=tflops)
        for n, (precision, tflops) in enumerate([("bf16", 600.0), ("fp32", 50.0), ("bf16", 610.0)])
    ]
    assert History(peaks).peak_tflops("bf16") == 610.0
    assert History(peaks).peak_tflops("fp16") is None


def test_a_session_s_end_that_is_there_twice_counts_once() -> None:
    end = End(at=_at(60), exit_code=0, wall_s=60.0, gpu_s=1.0)
    once, twice = History([header(at=_at(0)), end]), History([header(at=_at(0)), end, end])
    assert once.wall_s == twice.wall_s == 60.0
