"""A study's winner, runner-up and gate again: what runs, what is compared, and the exit code.

A fake backend plays the trials; options, studies, journals and reports are real.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import NOT_RESOLVED, InputError
from platform.search.__main__ import main as search
from platform.search.__main__ import parse
from platform.search.loop import tune
from platform.search.rechecking import command
from platform.search.rechecking.verdict import SLOWER, PointAgain
from platform.search.setup.rechecked import REPEATS, subject_of
from platform.search.setup.request import read_request
from platform.study.result.ranking import PointRuns
from platform.study.study import Study, read
from tests.samples import header, measurement
from tests.search.loop.backend import result
from tests.search.loop.played import SPEEDS, Played
from trainers.records.job import Job
from trainers.records.journal import Measured
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json


def point(*speeds: float) -> PointRuns:
    runs = [measurement(tokens_per_s=speed, repeat=number + 1) for number, speed in enumerate(speeds)]
    return PointRuns(search=None, runs=tuple(runs))


@pytest.mark.parametrize(
    ("then", "now", "is_slower"),
    [
        ((1000.0, 1010.0, 990.0), (900.0, 905.0, 895.0), True),
        ((1000.0, 1010.0, 990.0), (1100.0, 1105.0, 1095.0), False),
        ((1000.0, 1010.0, 990.0), (1001.0, 999.0, 1000.0), False),
        ((1000.0, 1200.0, 800.0), (950.0, 800.0, 1100.0), False),
        ((1000.0,), (900.0,), False),
    ],
)
def test_slower_is_slower_by_more_than_the_interval(
    then: tuple[float, ...], now: tuple[float, ...], is_slower: bool
) -> None:
    again = PointAgain(then=point(*then), now=point(*now))
    assert again.is_slower is is_slower
    assert again.ratio == pytest.approx(math.prod(now) ** (1 / len(now)) / math.prod(then) ** (1 / len(then)))
    assert (again.interval is None) is (len(then) + len(now) < 3)
    if again.interval is not None:
        assert again.ratio is not None and again.interval[0] < again.ratio < again.interval[1]


def test_the_interval_is_student_s_of_unpaired_runs() -> None:
    """Compares with the textbook's figure, of scipy."""
    from scipy import stats

    then, now = (1000.0, 1030.0, 985.0, 1001.0), (950.0, 965.0, 940.0)
    low, high = PointAgain(then=point(*then), now=point(*now)).interval or (0.0, 0.0)
    expected = stats.ttest_ind([*map(math.log, now)], [*map(math.log, then)]).confidence_interval(0.95)
    assert (math.log(low), math.log(high)) == pytest.approx((expected.low, expected.high), rel=1e-3)


class Rechecked:
    """An old study with played trials, and the command on it."""

    def __init__(self, played: Played, pair: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.played, self._capsys, self._pair = played, capsys, pair
        assert played.search(pair, "--name", "old", "--gpus", "2", "--repeats", "2", "--searcher", "sweep") == 0
        capsys.readouterr()

    def run(self, *argv: str) -> tuple[int, dict[str, Any], str]:
        """Returns the exit code, the JSON object and the lines beside it."""
        self.played.jobs.clear()
        code = command.main(["old", "--studies", str(self.played.studies), "--json", *argv])
        printed = self._capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else {}, printed.err


@pytest.fixture
def rechecked(played: Played, pair: str, capsys: pytest.CaptureFixture[str]) -> Rechecked:
    return Rechecked(played, pair, capsys)


def test_what_is_as_fast_as_then_ends_with_0(rechecked: Rechecked) -> None:
    code, answer, _ = rechecked.run()
    assert code == answer["exit_code"] == 0
    assert (answer["study"], answer["recheck"]) == ("old", "old-recheck-1")
    assert answer["winner"]["ratio"] == answer["runner_up"]["ratio"] == pytest.approx(1.0)
    assert answer["gate_passed"] is True and answer["winner"]["failure"] == ""
    jobs = rechecked.played.jobs
    timed = [(job.layout.checkpointing, job.repeat) for job in jobs if job.rungs]
    assert {(name, repeat) for name in ("none", "full") for repeat in range(REPEATS + 1)} <= set(timed)
    assert any(job.gate for job in jobs)
    folder = rechecked.played.studies
    then, now = (read(folder / name)[0] for name in ("old", "old-recheck-1"))
    assert {run.id for run in now.measurements if not run.repeat} <= {run.id for run in then.measurements}
    assert rechecked.run()[1]["recheck"] == "old-recheck-2"


def test_a_slower_winner_ends_with_1_and_what_has_changed(
    rechecked: Rechecked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slower(job: Job, batch: BatchPoint) -> Measurement:
        run = result(job, batch, SPEEDS[2] * (0.9 if job.layout.checkpointing == "none" else 0.8) + job.repeat)
        assert run.conditions is not None
        versions = {**run.conditions.versions, "torch": "99.0"}
        return dataclasses.replace(run, conditions=dataclasses.replace(run.conditions, versions=versions))

    monkeypatch.setattr(rechecked.played, "play", slower)
    code, answer, _ = rechecked.run()
    assert code == SLOWER and answer["winner"]["slower"] and answer["winner"]["ratio"] == pytest.approx(0.9, rel=0.01)
    assert not answer["runner_up"]["slower"]
    (change,) = (change for change in answer["changes"] if change["names"] == ["torch"])
    assert change["values"].endswith("to 99.0")
    assert command.main(["old", "--studies", str(rechecked.played.studies)]) == SLOWER
    text = capsys.readouterr().out
    assert "1,600 then (-9.9%" in text and "): slower." in text and "Changed: torch: " in text


def test_a_winner_that_does_not_run_any_more_ends_with_1(rechecked: Rechecked, monkeypatch: pytest.MonkeyPatch) -> None:
    def oom(job: Job, batch: BatchPoint) -> Measurement:
        run = rechecked.played.__class__.play(rechecked.played, job, batch)
        if job.layout.checkpointing == "full":
            return run
        return job.measurement(batch, Outcome.OOM, reason="asked for 4 GiB")

    monkeypatch.setattr(rechecked.played, "play", oom)
    code, answer, _ = rechecked.run()
    assert code == SLOWER and answer["winner"]["failure"] == "oom (asked for 4 GiB)"
    assert answer["winner"]["now_tokens_per_s"] is None


def test_a_failed_gate_ends_with_1(rechecked: Rechecked) -> None:
    rechecked.played.losses = lambda job: (2.0, 1.0) if job.layout.checkpointing == "full" else (2.0, 1.5)
    code, answer, _ = rechecked.run()
    assert code == SLOWER and answer["gate_passed"] is False


def test_where_it_was_not_measured_it_is_not_resolved(rechecked: Rechecked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "run", lambda loop, **_: None)
    code, answer, _ = rechecked.run()
    assert code == NOT_RESOLVED and answer["winner"]["ratio"] is None and answer["gate_passed"] is None


def test_it_can_be_resumed(rechecked: Rechecked) -> None:
    rechecked.played.cut = 2
    code, answer, _ = rechecked.run()
    assert code == 130 and not answer and len(rechecked.played.jobs) == 1
    rechecked.played.cut = None
    assert rechecked.played.search("--resume", "old-recheck-1") == 0
    assert {job.layout.checkpointing for job in rechecked.played.jobs} == {"none", "full"}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("nope",), "nope"),
        (("old", "--time-budget", "soon"), "must be a duration above 0"),
        (("old", "--resume"), "unrecognized arguments: --resume"),
    ],
)
def test_bad_input_is_one_sentence(
    argv: tuple[str, ...], sentence: str, rechecked: Rechecked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*argv, "--studies", str(rechecked.played.studies)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and sentence in line


def test_a_space_that_has_changed_is_refused(rechecked: Rechecked, pair: str) -> None:
    path = Path(pair)
    path.write_text(path.read_text() + "\n# changed\n")
    code, _, printed_lines = rechecked.run()
    assert code == 2 and "is not the one that the study began with" in printed_lines


def test_a_study_without_a_winner_is_refused(played: Played, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        played, "play", lambda job, batch: job.measurement(batch, Outcome.OOM, reason="asked for 4 GiB")
    )
    played.search(pair, "--name", "old", "--gpus", "2")
    with pytest.raises(InputError, match="the study old has no winner to run again"):
        subject_of(played.studies / "old")


def test_the_points_of_a_command_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("train()")
    words = ("--tokens-per-step", "64", "--seq-len", "16", "--gpus", "2", "--", "python", "train.py")
    request = read_request(parse([*words, "{micro_batch=1,2}", "{grad_accum}", "{mode=a,b,c}"]))
    candidates, _ = request.on(request.space, 2)
    with Study.create(tmp_path / "studies", "old") as study:
        study.record(header("old", recipes=(request.space.recipe,), options=to_json(request.options)))
        for candidate, speed in zip(candidates, (100.0, 300.0, 200.0), strict=True):
            run = measurement(recipe=candidate.recipe, on=candidate.layout, tokens_per_s=None, outcome=Outcome.OK)
            study.record(Measured(measurement=dataclasses.replace(run, tokens_per_s=speed, step_time_s=64 / speed)))
    (tmp_path / "run.yaml").write_text(f"recheck: {study.path}\n")
    argv = ["--config", "run.yaml", "--dry-run", "--json", "--address", "local"]
    assert search(argv) == 2
    assert "which this user did not begin to search" in capsys.readouterr().err
    assert search([*argv, "--trust"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(entry["layout"]["flags"], entry["micro_batches"]) for entry in plan["would_run"]] == [
        (candidate.layout.flags, [1]) for candidate in candidates[1:]
    ]
