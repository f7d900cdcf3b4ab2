"""Budgets of the search loop: what ends a session, and what it still measures. A fake backend plays the trials."""

import dataclasses
import datetime

import pytest

from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.study import Study
from tests.samples import header
from tests.search.loop.backend import (
    ALL_RUNGS,
    CLUSTER,
    LAYOUTS,
    RECIPE,
    Backend,
    Clock,
    Make,
    Play,
    TimeOut,
    candidates,
    fast,
    history_of,
    outcomes,
    result,
)
from tests.wording import Wording
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Resume, RungStart, TrialStart
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint


def in_time(clock: Clock) -> Play:
    """Returns what plays a worker: no rung begins after its job's stop, save the first of a job that runs one."""

    def play(job: Job, batch: BatchPoint) -> Measurement | TimeOut:
        is_late = job.stop_at_s is not None and clock.now_s > job.stop_at_s
        is_sure = job.runs_one and batch == job.rungs[0]
        return TimeOut() if is_late and not is_sure else fast(job, batch)

    return play


class TestBudgets:
    def test_max_trials(self, make: Make, backend: Backend, wording: Wording) -> None:
        loop = make(max_trials=2)
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:2] and "--max-trials" in loop.ended_reason
        wording(loop.ended_reason)

    def test_max_trials_whose_last_one_took_the_time_that_was_left(
        self, make: Make, backend: Backend, wording: Wording
    ) -> None:
        loop = make(max_trials=2, time_s=16.0)  # a trial takes 8 s
        backend.run(loop)
        assert "--max-trials" in loop.ended_reason and "--time-budget" in loop.ended_reason
        wording(loop.ended_reason)

    @pytest.mark.parametrize("budget", [{"max_trials": 3}, {"time_s": 24.0}, {"gpu_s": 50.0}])
    def test_one_that_ends_with_the_last_layout_did_not_end_the_search(
        self, make: Make, backend: Backend, budget: dict[str, float], wording: Wording
    ) -> None:
        loop = make(**budget)
        backend.run(loop)
        assert backend.order == ALL_RUNGS and loop.tried_all
        wording(loop.ended_reason)

    def test_time(self, make: Make, backend: Backend, wording: Wording) -> None:
        loop = make(time_s=16.0)  # a trial takes 8 s
        assert loop.spending.time_left_s() == 16.0
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:2] and loop.spending.time_left_s() == 0
        assert "--time-budget" in loop.ended_reason and "--gpu-s" not in loop.ended_reason
        wording(loop.ended_reason)

    def test_device_seconds(self, make: Make, backend: Backend, wording: Wording) -> None:
        loop = make(gpu_s=32.0)  # a trial takes 8 s of two devices
        assert loop.spending.time_left_s() == 16.0
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:2] and "--gpu-s" in loop.ended_reason
        wording(loop.ended_reason)

    def test_the_tighter_of_two_budgets_holds(self, make: Make, backend: Backend) -> None:
        loop = make(gpu_s=16.0, time_s=1000.0)
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:1] and "--gpu-s" in loop.ended_reason

    def test_what_is_too_short_for_a_trial_is_left(self, make: Make, backend: Backend, wording: Wording) -> None:
        loop = make(time_s=14.0)
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:1] and not loop.tried_all
        wording(loop.ended_reason)

    def test_no_rung_of_a_job_starts_after_the_budget_s_end(self, make: Make, clock: Clock) -> None:
        first, *_ = candidates()
        job = make((first,), time_s=14.0).next_job()
        assert job is not None and job.stop_at_s == clock.now_s + 14.0

    def test_a_budget_that_is_over_before_the_first_rung_measures_it_all_the_same(
        self, make: Make, backend: Backend, clock: Clock, study: Study
    ) -> None:
        backend.play = in_time(clock)
        backend.run(make(time_s=4.0))  # a trial's processes start for 5 s
        assert outcomes(study) == [(1, Outcome.OK)]

    @pytest.mark.parametrize("searcher", ["sweep", "guided"])
    def test_two_trials_worth_of_time_measures_two_layouts(
        self, make: Make, backend: Backend, clock: Clock, study: Study, searcher: str
    ) -> None:
        """Checks ladders of 35 s in a budget of 40 s, all of which final runs would take."""
        backend.rung_s, backend.play = 10.0, in_time(clock)
        rules = ConfirmationRules(repeats=3, gate=GateSize(steps=2, sequences=8))
        backend.run(make(searcher=searcher, rules=rules, time_s=40.0))
        searched = [point for point in history_of(study).measurements if not point.repeat]
        assert [point.batch.micro_batch for point in searched][:2] == [1, 1] or searcher == "guided"
        assert len({point.layout for point in searched}) == 2

    def test_a_resumed_study_of_one_layout_measures_a_second_one_before_any_final_run(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        rules = ConfirmationRules(repeats=1)
        left_out = make(rules=rules, max_trials=1)
        backend.step(left_out)
        study.record(End(exit_code=4, wall_s=8, gpu_s=16, left_out=left_out.left_out))
        study.record(Resume())
        assert left_out.left_out
        job = make(rules=rules).next_job()
        assert job is not None and job.layout == LAYOUTS[1] and not job.repeat

    def test_sessions_too_short_for_the_final_runs_that_are_left_try_further_layouts(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        """Checks sessions of two trials each, whose winner's last run and gate would take 40 s."""
        backend.play = lambda job, batch: result(job, batch, 12.0 + LAYOUTS.index(job.layout) / 10)
        rules = ConfirmationRules(repeats=1, gate=GateSize(steps=2, sequences=8))
        for num_tried in (2, 3):
            loop = make(rules=rules, time_s=17.0)
            backend.run(loop)
            study.record(End(exit_code=0, wall_s=17, gpu_s=34, left_out=loop.left_out))
            study.record(Resume())
            assert loop.left_out and len({point.layout for point in history_of(study).measurements}) == num_tried

    def test_a_first_ladder_that_was_cut_short_is_completed_after_the_other_layouts(
        self, make: Make, backend: Backend, clock: Clock
    ) -> None:
        first, *others = candidates()
        backend.rung_s, backend.play = 20.0, in_time(clock)
        short = [dataclasses.replace(other, micro_batches=(1,)) for other in others]
        backend.run(make((first, *short), time_s=130.0))
        assert backend.order == [
            (LAYOUTS[0], (1, 2, 4)),
            (LAYOUTS[1], (1,)),
            (LAYOUTS[2], (1,)),
            (LAYOUTS[0], (4,)),
        ]

    @pytest.mark.parametrize("budget", [{"max_trials": 1}, {"time_s": 8.0}, {"gpu_s": 16.0}])
    def test_each_session_has_a_budget_of_its_own(
        self, make: Make, backend: Backend, study: Study, budget: dict[str, float]
    ) -> None:
        for number in (1, 2, 3):
            backend.run(make(**budget))
            assert backend.order == ALL_RUNGS[:number]
            study.record(Resume())
        assert len(history_of(study).measurements) == 9

    def test_a_killed_session_s_trial_does_not_eat_the_budget_of_the_next(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        """Checks a study whose first session was killed in a trial two days ago; nothing records when the trial
        ended.
        """
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
        first = candidates()[0]
        start = TrialStart(
            at=(then + datetime.timedelta(seconds=1)).isoformat(),
            trial_id="t0001",
            key=first.key,
            recipe=first.recipe,
            layout=first.layout,
            micro_batches=first.micro_batches,
        )
        study.journal.unlink()
        study.record(header("made-up", at=then.isoformat(), recipes=(RECIPE,), cluster=CLUSTER))
        study.record(start)
        rung = RungStart(
            at=(then + datetime.timedelta(seconds=31)).isoformat(),
            trial_id="t0001",
            batch=first.batch_points()[0],
            deadline_s=60,
        )
        study.record(rung)
        study.record(Resume())
        loop = make(gpu_s=100.0)
        backend.run(loop)
        assert backend.order == ALL_RUNGS
        assert loop.history.gpu_s == pytest.approx(60 + 3 * 16), "30 s of two devices were lost, and no more"

    def test_device_seconds_and_the_time_they_leave_fall_while_a_trial_runs(
        self, make: Make, backend: Backend, clock: Clock, study: Study
    ) -> None:
        loop = make(gpu_s=100.0)
        assert (loop.spending.gpu_left_s(), loop.spending.time_left_s()) == (100.0, 50.0)
        job = loop.next_job()
        assert job is not None
        clock.now_s += 10
        assert (loop.spending.gpu_s, loop.spending.gpu_left_s(), loop.spending.time_left_s()) == (20.0, 80.0, 40.0)
        clock.now_s += 5
        loop.on_trial_end(job.trial_id, state="done", reason="")
        assert (loop.spending.gpu_s, loop.spending.gpu_left_s()) == (30.0, 70.0), "counted once when it is over"
        assert history_of(study).gpu_s == 30.0

    def test_the_end_names_the_budget_that_is_over(self, make: Make, backend: Backend, wording: Wording) -> None:
        loop = make(time_s=16.0, gpu_s=500.0)
        backend.run(loop)
        assert "--time-budget" in loop.ended_reason and "--gpu-s" not in loop.ended_reason
        wording(loop.ended_reason)

    @pytest.mark.parametrize(("time_s", "shown"), [(16.0, "16 s are over"), (20.0, "the 4 s that are left")])
    def test_a_budget_of_the_space_s_own_says_how_to_lift_it(
        self, make: Make, backend: Backend, time_s: float, shown: str
    ) -> None:
        loop = make(time_s=time_s, of_space=True)
        backend.run(loop)
        assert loop.ended_reason.startswith(shown)
        assert "(the space's own budget: --time-budget sets another)" in loop.ended_reason
