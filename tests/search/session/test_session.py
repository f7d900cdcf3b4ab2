"""A session's refusals and decisions before anything runs, and the end that it records."""

# pyright: reportPrivateUsage=false

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import platform.search.session.session_run as runs
import search_spaces
from platform.cluster.leftovers import Note
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import NOT_RESOLVED, ClusterError, InputError
from platform.common.signals import INTERRUPTED
from platform.report.summary import verdicts
from platform.search.__main__ import main, parse
from platform.search.loop import tune
from platform.search.loop.budget import Budget
from platform.search.loop.loop import SearchLoop
from platform.search.session import output, session
from platform.search.session.dry_run import show_dry_run
from platform.search.session.header import check_same
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.options import SearchOptions
from platform.search.setup.planning import TRIAL_S, SearchPlan, make_plan
from platform.search.setup.study_setup import StudySetup
from platform.study.history import History
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from search_spaces.miniature import TIME_BUDGET_S
from tests.samples import header, measurement, profile
from tests.search.loop.backend import (
    CLUSTER,
    LAYOUTS,
    RECIPE,
    Backend,
    Clock,
    Play,
    candidates,
    fast,
    out_of_memory,
    result,
)
from trainers.records.job import Job, Timing
from trainers.records.journal import End, Line, Measured, TrialEnd, TrialStart
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster

ONE_NODE = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=8)
TWO_NODES = dataclasses.replace(ONE_NODE, num_nodes=2, devices_per_node=4)
Played = Callable[[Backend, SearchLoop], object]
Run = Callable[..., tuple[int, str, History]]
PLACE = ClusterHandle(cluster=CLUSTER, cpus_per_worker=1.0, driver_ip="127.0.0.1")


def _options(*argv: str) -> SearchOptions:
    return parse(argv)


def test_a_study_is_not_resumed_on_as_many_devices_laid_out_otherwise() -> None:
    history = History([header("made-up", at="2026-01-01T00:00:00+00:00", recipes=(RECIPE,), cluster=ONE_NODE)])
    check_same(history, dataclasses.replace(_subject(), cluster=ONE_NODE))
    with pytest.raises(InputError, match="start a new study"):
        check_same(history, dataclasses.replace(_subject(), cluster=TWO_NODES))


def test_what_is_left_of_a_resumed_study_is_told_in_layouts_where_there_is_any() -> None:
    plan, timestamp = make_plan(candidates(), (), CLUSTER, None), "2026-01-01T00:00:00+00:00"
    output = session._rest_sentence(History(), plan)
    assert output == "Kept 0 measurements of the journal; 3 layouts to complete."
    ran = [
        measurement(recipe=RECIPE, on=candidate.layout, micro_batch=n) for candidate in candidates() for n in (1, 2, 4)
    ]
    history = History(Measured(at=timestamp, measurement=point) for point in ran)
    assert session._rest_sentence(history, plan) == "Kept 9 measurements of the journal; every layout was tried."


def test_workers_without_gpus_are_those_of_the_miniature() -> None:
    space = dataclasses.replace(search_spaces.load("bloom7b"), num_workers=8)
    assert session._cpu_workers(cast(Any, SimpleNamespace(space=space, num_devices=None))) == 2


class TestBudget:
    def test_the_space_s_own_holds_where_the_user_gave_none(self) -> None:
        bloom = search_spaces.load("bloom7b")
        assert bloom.miniature is not None
        space_budget = session.budget_of(_options("bloom7b"), bloom.miniature)
        assert space_budget == Budget(time_s=TIME_BUDGET_S, of_space=True)
        assert session.budget_of(_options("bloom7b"), bloom) == Budget()

    @pytest.mark.parametrize("budget_option", [("--max-trials", "3"), ("--time-budget-s", "900"), ("--gpu-s", "5")])
    def test_any_budget_of_the_user_s_lifts_it(self, budget_option: tuple[str, str]) -> None:
        miniature = search_spaces.load("bloom7b").miniature
        assert miniature is not None
        budget = session.budget_of(_options("bloom7b", *budget_option), miniature)
        assert not budget.of_space and budget.time_s == (900.0 if budget_option[0] == "--time-budget-s" else None)

    def test_a_dry_run_counts_the_confirming_run_and_tells_of_the_budget(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        setup = _subject()
        show_dry_run(setup, Budget(time_s=10.0, of_space=True), History(), as_object=False)
        output = capsys.readouterr().out
        # Three trials of three rungs, a last run of the winner and a reference: 5 starts, 11 rungs of 1.5 s, and a
        # winner's 2 s of windows after a step of at most 5 s.
        expected_s = 5 * TRIAL_S["cpu"] + 11 * 1.5 + 2 + 5
        assert setup.plan.expected_s(candidates(), CLUSTER, setup.timing, setup.rules) == expected_s
        assert f"{2 * expected_s:.0f} device seconds" in output
        assert "3 layouts with 9 batch points at most, and up to 2 final runs" in output
        assert "The budget ends it after 10 s (the space's own budget: --time-budget sets another)." in output
        show_dry_run(setup, Budget(gpu_s=20.0), History(), as_object=False)
        assert "The budget ends it after 10 s (--gpu-s)." in capsys.readouterr().out

    def test_a_dry_run_of_a_study_tells_what_is_left_of_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        timestamp = "2026-01-01T00:00:00+00:00"
        ran = [measurement(recipe=RECIPE, on=LAYOUTS[0], micro_batch=micro_batch) for micro_batch in (1, 2, 4)]
        ran.append(measurement(recipe=RECIPE, on=LAYOUTS[1], micro_batch=1))
        show_dry_run(
            _subject(), Budget(), History(Measured(at=timestamp, measurement=point) for point in ran), as_object=False
        )
        output = capsys.readouterr().out
        assert [f"would run  {layout.label}" in output for layout in LAYOUTS] == [False, True, True]
        assert f"{LAYOUTS[1].label}, micro-batch 2, 4\n" in output
        assert "2 layouts with 5 batch points at most, and up to 2 final runs" in output
        expected_s = 4 * TRIAL_S["cpu"] + 7 * 1.5 + 2 + 5
        assert f"{2 * expected_s:.0f} device seconds" in output

    def test_the_searcher_counts_worker_days_where_there_is_no_gpu(self) -> None:
        setup = _subject()
        assert setup.problem.costs.device == "worker"
        assert dataclasses.replace(setup, cluster=ONE_NODE).problem.costs.device == "GPU"

    def test_each_recipe_s_winner_may_be_confirmed(self) -> None:
        rules = ConfirmationRules(repeats=3)
        assert SearchPlan(candidates=(), skipped=()).expected_s((), CLUSTER, Timing(), rules) == 0
        two = candidates(RECIPE, dataclasses.replace(RECIPE, seq_len=16))
        assert SearchPlan(candidates=two, skipped=()).num_final(rules) == 2 * (3 * 3 + 1)

    def test_a_gate_s_sequences_go_over_any_number_of_ranks(self) -> None:
        gate = dataclasses.replace(_subject(), cluster=dataclasses.replace(CLUSTER, devices_per_node=6)).rules.gate
        assert gate is not None and gate.sequences == 12


def _subject() -> StudySetup:
    plan = make_plan(candidates(), (), CLUSTER, None)
    space = dataclasses.replace(search_spaces.load("gpt2"), recipe=RECIPE)
    fields: dict[str, Any] = {"searcher": "sweep", "seed": 0, "tokens": 1e9, "steps": None, "repeats": 0}
    request = cast(Any, SimpleNamespace(**fields, whole_steps=False, every_point=False, profile=False, fixed=None))
    return StudySetup(request=request, space=space, cluster=CLUSTER, cap_gib=None, plan=plan)


class TestEnd:
    """The last line of a session's journal."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
        """Runs a session whose trials are played; returns its exit code, what every trial failed with, and the
        journal.
        """

        @contextlib.contextmanager
        def no_recorder(journal: Path, state: Path) -> Generator[str]:
            yield "none"

        def ran(play: Played, watch: Callable[..., object] = lambda *_: None) -> tuple[int, str, History]:
            with Study.create(tmp_path, "made-up") as study:
                study.record(header("made-up", recipes=(RECIPE,), cluster=CLUSTER))
                backend = Backend(study, Clock())
                monkeypatch.setattr(tune, "recorder", no_recorder)
                monkeypatch.setattr(tune, "note_of", lambda **_: Note())
                monkeypatch.setattr(tune, "run", lambda loops, **_: play(backend, loops[0]))
                monkeypatch.setattr(runs.head, "watched", lambda *shown: contextlib.nullcontext(watch(*shown)))
                code, fault = runs.SessionRun(study, _subject(), PLACE, Budget(), began_s=time.monotonic()).run()
                return code, fault, read(study.path)[0]

        return ran

    @pytest.mark.parametrize(
        ("outcome", "code"), [(Outcome.OK, 0), (Outcome.OOM, 1), (Outcome.FAILED, ClusterError.exit_code)]
    )
    def test_it_says_the_exit_code_of_the_command(self, run: Run, outcome: Outcome, code: int) -> None:
        plays: dict[Outcome, Play] = {
            Outcome.OK: fast,
            Outcome.OOM: out_of_memory,
            Outcome.FAILED: lambda job, batch: result(job, batch, None, outcome=outcome, reason="no luck"),
        }

        def play(backend: Backend, loop: SearchLoop) -> None:
            backend.play = plays[outcome]
            backend.run(loop)

        exit_code, fault, history = run(play)
        assert history.end is not None and history.end.exit_code == code == exit_code
        failed = "every trial failed, the last one with: no luck"
        assert fault == (failed if outcome is Outcome.FAILED else "")
        assert history.end.why == (fault or "every layout of the space was tried")

    def test_what_is_planned_is_in_the_journal_before_the_first_trial(self, run: Run) -> None:
        def play(backend: Backend, loop: SearchLoop) -> None:
            planned = read(backend.study.path)[0].planned
            assert planned is not None and [layout.layout for layout in planned.layouts] == list(LAYOUTS)
            assert backend.step(loop) is not None
            raise KeyboardInterrupt

        code, _, history = run(play)
        assert code == INTERRUPTED
        assert verdicts(StudyResult.of(history))[0].startswith("Measured one layout of 3 for miniature of")

    def test_a_machine_that_stays_disturbed_ends_it_with_code_4(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        factors = itertools.cycle([0.45, 0.9, 0.5, 0.85, 0.4])

        def play(backend: Backend, loop: SearchLoop) -> None:
            def disturbed(job: Job, batch: BatchPoint) -> Measurement:
                speed = fast(job, batch).tokens_per_s or 0.0
                return result(job, batch, speed * next(factors) if job.repeat else speed, step_time_derived=True)

            backend.play = disturbed
            backend.run(loop)

        code, _, history = run(play)
        assert history.end is not None and history.end.exit_code == code == NOT_RESOLVED
        assert "further runs of" in history.end.left_out
        output = capsys.readouterr().err
        assert "Not resolved which layout is the fastest" in output
        assert "go on with: python -m platform.search" in output

    def test_it_says_which_final_runs_were_left_out(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        def play(backend: Backend, loop: SearchLoop) -> None:
            backend.play = lambda job, batch: result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))
            while (job := backend.step(loop)) and not job.gate:
                pass
            loop.spending.budget = Budget(time_s=1e-9)
            backend.run(loop)

        _, _, history = run(play)
        left_out = "the reference of the numerics gate (about 10 s more)"
        assert history.end is not None and history.end.left_out == left_out
        assert "Final runs" not in capsys.readouterr().err, "the verdict says it, with how to go on"
        assert f"Final runs left out: {left_out}; --resume runs them." in verdicts(StudyResult.of(history))

    def test_a_stuck_ray_ends_it_some_time_after_the_interrupt(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Checks that another thread ends the process, because the main thread is in a call into Ray."""
        ends: list[Callable[[], None]] = []
        monkeypatch.setattr(runs, "ends_when_interrupted", lambda end: contextlib.nullcontext(ends.append(end)))
        monkeypatch.setattr(runs.os, "_exit", sys.exit)

        def play(backend: Backend, loop: SearchLoop) -> None:
            assert loop.next_job() is not None
            ends[0]()

        with pytest.raises(SystemExit) as exited:
            run(play)
        assert exited.value.code == INTERRUPTED
        history = read(tmp_path / "made-up")[0]
        assert history.end is not None and history.end.exit_code == INTERRUPTED
        output = capsys.readouterr().err
        assert "go on with: python -m platform.search --resume made-up" in output
        assert "Ray did not end within 60 s of the interrupt: --resume sweeps what is left of it." in output

    def test_a_head_that_is_gone_ends_it_with_code_3(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Checks that the process itself ends, because the rest of it cannot be waited for."""
        calls: list[Callable[[str], None]] = []
        monkeypatch.setattr(runs.os, "_exit", sys.exit)

        def play(backend: Backend, loop: SearchLoop) -> None:
            assert loop.next_job() is not None
            calls[0]("the head is gone")

        with pytest.raises(SystemExit) as exited:
            run(play, lambda head, raylet, lost: calls.append(lost))
        assert exited.value.code == ClusterError.exit_code
        history = read(tmp_path / "made-up")[0]
        assert history.end is not None and history.end.exit_code == ClusterError.exit_code
        assert history.end.why == "the head is gone"
        output = capsys.readouterr().err
        assert "cluster fault: the head is gone; what was measured is kept" in output and "--resume made-up" in output

    def test_an_interrupted_trial_counts_up_to_the_end(self, run: Run) -> None:
        def play(backend: Backend, loop: SearchLoop) -> None:
            assert loop.next_job() is not None
            time.sleep(0.3)  # the journal says nothing of it
            raise KeyboardInterrupt

        code, _, history = run(play)
        assert history.end is not None and history.end.exit_code == code == INTERRUPTED
        # The journal counts from the trial's line, the session from when that is on disk: a busy one takes its time.
        assert history.gpu_s > 2 * 0.29 and history.end.gpu_s > 2 * 0.29
        assert history.end.gpu_s == pytest.approx(history.gpu_s, abs=20)

    def test_one_interrupted_while_ray_tune_is_imported_says_how_to_go_on_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Interrupts the import of Ray Tune, which takes seconds after the journal's first line."""

        class CtrlC:
            def find_spec(self, name: str, *_: object) -> None:
                if name == tune.__name__:
                    raise KeyboardInterrupt

        monkeypatch.delattr(sys.modules["platform.search.loop"], "tune")
        monkeypatch.delitem(sys.modules, tune.__name__)
        monkeypatch.setattr(sys, "meta_path", [CtrlC(), *sys.meta_path])
        with Study.create(tmp_path, "made-up") as study:
            study.record(header("made-up", recipes=(RECIPE,), cluster=CLUSTER))
            code, _ = runs.SessionRun(study, _subject(), PLACE, Budget(), began_s=time.monotonic()).run()
            history = read(study.path)[0]
        assert history.end is not None and history.end.exit_code == code == INTERRUPTED
        assert "Interrupted. What was measured is kept; go on with:" in capsys.readouterr().err


@pytest.mark.parametrize("refused_by", ["the address", "Ray"])
def test_a_refused_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_by: str) -> None:
    error = InputError("no") if refused_by == "the address" else ClusterError("no")

    @contextlib.contextmanager
    def refuse(address: str | None, **_: object) -> Generator[None]:
        assert (tmp_path / "studies" / "gpt2-1").is_dir(), "the name is held while Ray starts"
        raise error
        yield

    monkeypatch.setattr(session, "connected", refuse)
    assert main(["gpt2", "--studies", str(tmp_path / "studies")]) == error.exit_code
    assert list(tmp_path.iterdir()) == []


def test_it_says_why_a_winner_has_no_profile() -> None:
    best, timestamp = measurement(), "2026-01-01T00:00:00+00:00"
    lines: list[Line] = [header(at=timestamp), Measured(at=timestamp, measurement=best)]
    assert "no winner is named" in output.not_profiled(StudyResult.of(History(lines[:1])))
    sentence = "The winner was not profiled: the search ended before it. --resume with --profile tries again."
    assert output.not_profiled(StudyResult.of(History(lines))) == sentence
    interrupted = End(at=timestamp, exit_code=130, wall_s=1.0, gpu_s=4.0)
    assert output.not_profiled(StudyResult.of(History([*lines, interrupted]))) == sentence
    by_itself = dataclasses.replace(interrupted, exit_code=0)
    measured = TrialEnd(at=timestamp, trial_id="t1", key="k", state="done", wall_s=120.0, gpu_s=480.0)
    assert (
        "not profiled: too little of the budget was left for one more trial, which takes 2 min 0 s at the least."
        in output.not_profiled(StudyResult.of(History([*lines, measured, by_itself])))
    )
    left_out = dataclasses.replace(by_itself, left_out="the winner's numerics gate")
    assert "not profiled: final runs that come before it were left out. --resume" in output.not_profiled(
        StudyResult.of(History([*lines, left_out]))
    )
    trial_fields: dict[str, Any] = {"trial_id": "t9", "key": "k"}
    start = TrialStart(
        at=timestamp, recipe=best.recipe, layout=best.layout, micro_batches=(), profiles=best.batch, **trial_fields
    )
    end = TrialEnd(at=timestamp, state="done", wall_s=1.0, gpu_s=4.0, reason="no kernel was seen", **trial_fields)
    assert "not profiled: no kernel was seen. --resume" in output.not_profiled(
        StudyResult.of(History([*lines, start, end]))
    )
    assert (
        output.not_profiled(
            StudyResult.of(History([*lines, start, dataclasses.replace(profile(best), at=timestamp), end]))
        )
        == ""
    )
