"""The search loop, one step at a time: a fake backend plays the trials, the study and its journal are real."""

import dataclasses
import datetime
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.searchers.problem import Observation
from platform.searchers.sweep import Sweep
from platform.study.journal import Tail
from platform.study.result.ranking import winner
from platform.study.result.result import StudyResult as StudyResult
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import header
from tests.search.loop.backend import (
    ALL_RUNGS,
    CLUSTER,
    CONFIRM,
    LAYOUTS,
    OTHER,
    RECIPE,
    Backend,
    Clock,
    Died,
    Make,
    Play,
    TimeOut,
    candidates,
    fast,
    history_of,
    out_of_memory,
    outcomes,
    result,
)
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Measured, Peak, Resume, RungStart, TrialEnd, TrialStart
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout

ROOT = Path(__file__).parents[3]


def in_time(clock: Clock) -> Play:
    """Returns what plays a worker: no rung begins after its job's stop, save the first of a job that runs one."""

    def play(job: Job, batch: BatchPoint) -> Measurement | TimeOut:
        is_late = job.stop_at_s is not None and clock.now_s > job.stop_at_s
        is_sure = job.runs_one and batch == job.rungs[0]
        return TimeOut() if is_late and not is_sure else fast(job, batch)

    return play


class TestWhatRuns:
    def test_every_layout_once_in_the_searcher_s_order_and_then_the_end(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        loop = make()
        backend.run(loop)
        assert backend.order == ALL_RUNGS
        assert loop.ended_reason == "every layout of the space was tried"
        history = history_of(study)
        assert len(history.measurements) == 9
        assert history.finished == {candidate.key for candidate in candidates()}
        assert loop.next_job() is None, "an ended search stays ended"

    def test_a_random_search_runs_the_same_in_another_order(self, make: Make, backend: Backend) -> None:
        many = candidates(RECIPE, OTHER)
        backend.run(make(many, searcher="random"))
        ran = [(job.recipe.id, job.layout.id) for job in backend.jobs]
        plain = [(candidate.recipe.id, candidate.layout.id) for candidate in many]
        assert sorted(ran) == sorted(plain) and ran != plain

    def test_a_job_carries_what_its_trial_needs(self, make: Make, study: Study) -> None:
        job = make().next_job()
        assert job is not None
        assert (job.trial_id, job.repeat, job.cap_gib, job.recorder) == ("t0001", 0, 2.0, "none")
        assert job.rungs == candidates()[0].batch_points() and job.stop_at_s is None
        (start,) = history_of(study).trials
        assert (start.trial_id, start.layout, start.micro_batches) == ("t0001", LAYOUTS[0], (1, 2, 4))

    def test_one_trial_runs_at_a_time_and_its_end_is_in_the_journal(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        loop = make()
        job = loop.next_job()
        assert job is not None and loop.running is job
        assert not history_of(study).finished
        state, reason = backend.begin(job)
        loop.on_trial_end(state=state, reason=reason)
        assert loop.running is None
        history = history_of(study)
        assert len(history.finished) == 1
        assert history.gpu_s == pytest.approx(2 * (5 + 3)), "two devices, a start and three rungs"

    def test_without_candidates_the_search_is_over_at_once(self, make: Make, study: Study) -> None:
        loop = make((), rules=CONFIRM)
        assert loop.next_job() is None and loop.ended_reason
        assert not history_of(study).trials

    def test_points_with_names_run_the_rungs_they_name(self, make: Make, backend: Backend, study: Study) -> None:
        points = tuple(
            Candidate(recipe=RECIPE, layout=layout, micro_batches=(micro_batch,), name=name)
            for name, layout, micro_batch in (("b", LAYOUTS[2], 4), ("a", LAYOUTS[0], 2))
        )
        backend.run(make(points))
        assert backend.order == [(LAYOUTS[2], (4,)), (LAYOUTS[0], (2,))]
        loop = make(points)
        assert loop.next_job() is None and len(history_of(study).trials) == 2

    def test_recipes_do_not_compete(self, make: Make, backend: Backend, study: Study) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement:
            return result(job, batch, 9000.0 if job.recipe == OTHER else 100.0 * batch.micro_batch)

        backend.play = play
        backend.run(make(candidates(RECIPE, OTHER)))
        assert len(backend.jobs) == 6
        best = {recipe_result.recipe.id: won for recipe_result, won in StudyResult.of(history_of(study)).winners}
        assert best[RECIPE.id].tokens_per_s == 400.0 and best[OTHER.id].tokens_per_s == 9000.0


class TestBudgets:
    def test_max_trials(self, make: Make, backend: Backend) -> None:
        loop = make(max_trials=2)
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:2] and loop.ended_reason == "the search ran its 2 trials (--max-trials)"

    def test_max_trials_whose_last_one_took_the_time_that_was_left(self, make: Make, backend: Backend) -> None:
        loop = make(max_trials=2, time_s=16.0)  # a trial takes 8 s
        backend.run(loop)
        assert loop.ended_reason == "the search ran its 2 trials (--max-trials), and 16 s are over (--time-budget)"

    @pytest.mark.parametrize("budget", [{"max_trials": 3}, {"time_s": 24.0}, {"gpu_s": 50.0}])
    def test_one_that_ends_with_the_last_layout_did_not_end_the_search(
        self, make: Make, backend: Backend, budget: dict[str, float]
    ) -> None:
        loop = make(**budget)
        backend.run(loop)
        assert backend.order == ALL_RUNGS and loop.tried_all
        assert loop.ended_reason == "every layout of the space was tried"

    def test_time(self, make: Make, backend: Backend) -> None:
        loop = make(time_s=16.0)  # a trial takes 8 s
        assert loop.spending.time_left_s() == 16.0
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:2] and loop.spending.time_left_s() == 0
        assert loop.ended_reason == "16 s are over (--time-budget)"

    def test_device_seconds(self, make: Make, backend: Backend) -> None:
        loop = make(gpu_s=32.0)  # a trial takes 8 s of two devices
        assert loop.spending.time_left_s() == 16.0
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:2] and loop.ended_reason == "32 device seconds are spent (--gpu-s)"

    def test_the_tighter_of_two_budgets_holds(self, make: Make, backend: Backend) -> None:
        loop = make(gpu_s=16.0, time_s=1000.0)
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:1] and "--gpu-s" in loop.ended_reason

    def test_what_is_too_short_for_a_trial_is_left(self, make: Make, backend: Backend) -> None:
        loop = make(time_s=14.0)
        backend.run(loop)
        assert backend.order == ALL_RUNGS[:1] and "too short for a trial" in loop.ended_reason

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
        assert loop.next_job() is not None
        clock.now_s += 10
        assert (loop.spending.gpu_s, loop.spending.gpu_left_s(), loop.spending.time_left_s()) == (20.0, 80.0, 40.0)
        clock.now_s += 5
        loop.on_trial_end(state="done", reason="")
        assert (loop.spending.gpu_s, loop.spending.gpu_left_s()) == (30.0, 70.0), "counted once when it is over"
        assert history_of(study).gpu_s == 30.0

    def test_the_end_names_the_budget_that_is_over(self, make: Make, backend: Backend) -> None:
        loop = make(time_s=16.0, gpu_s=500.0)
        backend.run(loop)
        assert loop.ended_reason == "16 s are over (--time-budget)"

    @pytest.mark.parametrize(("time_s", "shown"), [(16.0, "16 s are over"), (20.0, "the 4 s that are left")])
    def test_a_budget_of_the_space_s_own_says_how_to_lift_it(
        self, make: Make, backend: Backend, time_s: float, shown: str
    ) -> None:
        loop = make(time_s=time_s, of_space=True)
        backend.run(loop)
        assert loop.ended_reason.startswith(shown)
        assert "(the space's own budget: --time-budget sets another)" in loop.ended_reason


class TestFailures:
    def test_a_failed_rung_ends_its_ladder_and_not_the_study(self, make: Make, backend: Backend, study: Study) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement:
            if job.layout == LAYOUTS[0] and batch.micro_batch == 2:
                return result(job, batch, None, outcome=Outcome.FAILED, reason="rank 1 fell over", rank=1)
            return fast(job, batch)

        backend.play = play
        backend.run(make())
        assert backend.order == ALL_RUNGS, "a failure that said why is not tried again"
        assert outcomes(study)[:3] == [(1, Outcome.OK), (2, Outcome.FAILED), (1, Outcome.OK)]
        assert history_of(study).finished == {candidate.key for candidate in candidates()}

    def test_a_silent_death_is_tried_again_once_and_keeps_what_was_measured(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement | Died:
            return Died() if job.trial_id == "t0001" and batch.micro_batch == 2 else fast(job, batch)

        backend.play = play
        backend.run(make())
        assert backend.order == [(LAYOUTS[0], (1, 2, 4)), (LAYOUTS[0], (2, 4)), *ALL_RUNGS[1:]]
        assert [outcome for _, outcome in outcomes(study)] == [Outcome.OK] * 9

    def test_a_second_silent_death_is_recorded_as_failed(self, make: Make, backend: Backend, study: Study) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement | Died:
            dies = job.layout == LAYOUTS[0] and batch.micro_batch == 2
            return Died(reason="the node is gone") if dies else fast(job, batch)

        backend.play = play
        backend.run(make())
        assert [layout for layout, _ in backend.order] == [LAYOUTS[0], LAYOUTS[0], LAYOUTS[1], LAYOUTS[2]]
        failed = [
            measurement for measurement in history_of(study).measurements if measurement.outcome is Outcome.FAILED
        ]
        assert [(measurement.batch.micro_batch, measurement.reason) for measurement in failed] == [
            (2, "the node is gone")
        ]
        assert failed[0].trial_id == "t0002"

    def test_a_hang_s_end_is_told_by_its_verdict(self, make: Make, backend: Backend, study: Study) -> None:
        """Checks that the reason is the verdict, not Ray's message about the processes that the watchdog ended."""
        loop = make(max_trials=1)
        job = loop.next_job()
        assert job is not None
        hung = result(job, job.rungs[0], None, outcome=Outcome.HUNG, reason="rank 1 made no progress for 60 s", rank=1)
        study.record(Measured(measurement=hung))
        loop.on_trial_end(state="failed", reason="the process of rank 1 died: exit code 86")
        (end,) = [line for line in Tail(study.journal).read() if isinstance(line, TrialEnd)]
        assert (end.state, end.reason) == ("done", "rank 1 made no progress for 60 s")
        assert backend.step(loop) is None

    @pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.THRASH, Outcome.DIVERGED])
    def test_a_death_after_the_ladder_s_end_is_not_silent(
        self, make: Make, backend: Backend, study: Study, outcome: Outcome
    ) -> None:
        loop = make()
        job = loop.next_job()
        assert job is not None
        study.record(Measured(measurement=result(job, job.rungs[0], None, outcome=outcome, reason="so")))
        loop.on_trial_end(state="failed", reason="the process of rank 1 died")
        (end,) = [line for line in Tail(study.journal).read() if isinstance(line, TrialEnd)]
        assert (end.state, end.reason) == ("done", "so")
        backend.run(loop)
        assert backend.order == ALL_RUNGS[1:]

    def test_a_trial_that_an_earlier_session_cut_short_is_no_silent_death(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        loop = make(max_trials=1)
        backend.play = lambda job, batch: TimeOut() if batch.micro_batch > 1 else fast(job, batch)
        backend.step(loop)
        deaths = iter([True])

        def play(job: Job, batch: BatchPoint) -> Measurement | Died:
            return Died() if next(deaths, False) else fast(job, batch)

        backend.play = play
        backend.run(make())
        assert backend.order[:3] == [(LAYOUTS[0], (1, 2, 4)), (LAYOUTS[0], (2, 4)), (LAYOUTS[0], (2, 4))]
        assert [outcome for _, outcome in outcomes(study)] == [Outcome.OK] * 9

    def test_a_study_where_every_trial_dies_ends_and_blames_no_layout(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        backend.play = lambda job, batch: Died(reason="the node is ill")
        loop = make(rules=CONFIRM)
        backend.run(loop)
        assert backend.order == [ALL_RUNGS[0], ALL_RUNGS[0], ALL_RUNGS[1]]
        assert loop.fault == loop.ended_reason and "3 trials in a row ended without a message" in loop.fault
        assert not outcomes(study) and not history_of(study).finished
        study.record(Resume())
        backend.play = fast
        backend.run(make())
        assert backend.order[3:] == ALL_RUNGS, "the cluster is well again: all are run"

    def test_a_layout_that_died_twice_is_blamed_once_another_one_ran(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        backend.play = lambda job, batch: Died() if job.layout == LAYOUTS[0] else fast(job, batch)
        loop = make()
        for _ in range(2):
            backend.step(loop)
        assert not outcomes(study)
        backend.step(loop)
        assert (1, Outcome.FAILED) in outcomes(study) and len(outcomes(study)) == 4
        backend.run(loop)
        assert backend.order == [ALL_RUNGS[0], *ALL_RUNGS] and not loop.fault

    def test_the_only_layout_that_died_twice_is_blamed_at_the_end(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        backend.play = lambda job, batch: Died()
        loop = make(candidates()[:1])
        backend.run(loop)
        assert outcomes(study) == [(1, Outcome.FAILED)] and len(backend.jobs) == 2 and not loop.fault

    def test_a_trial_whose_node_is_lost_is_run_again_three_times(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        loop = make()
        for number in range(3):
            assert loop.next_job() is not None
            loop.on_trial_end(state="failed", reason="gone", nodes=("10.0.0.1", "10.0.0.2"), lost_nodes=["10.0.0.2"])
            assert bool(loop.fault) == (number == 2)
        assert loop.fault == (
            "3 trials in a row ended without a message from their workers, all on node 10.0.0.2,"
            " the last one with: gone"
        )
        ends = [line for line in Tail(study.journal).read() if isinstance(line, TrialEnd)]
        assert {(end.state, end.fault, end.node) for end in ends} == {("interrupted", "node lost", "10.0.0.2")}

    def test_trials_that_never_start_end_the_session_and_stay_to_be_run(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        """Checks the loss of a node, for which no layout is to blame: a resumed study runs all layouts."""
        loop = make(rules=CONFIRM)
        for _ in range(3):
            assert loop.next_job() is not None
            loop.on_trial_end(state="failed", reason="no room for two workers", started=False)
        assert loop.next_job() is None and "no room for two workers" in loop.fault == loop.ended_reason
        assert not outcomes(study) and not history_of(study).finished
        study.record(Resume())
        backend.run(make())
        assert backend.order == ALL_RUNGS

    def test_one_trial_that_did_not_start_is_run_again(self, make: Make, backend: Backend, study: Study) -> None:
        loop = make()
        for _ in range(2):
            loop.next_job()
            loop.on_trial_end(state="failed", reason="", started=False)
        backend.run(loop)
        assert backend.order == ALL_RUNGS and not loop.fault

    def test_a_confirming_trial_that_did_not_start_is_run_again(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        backend.play = lambda job, batch: dataclasses.replace(fast(job, batch), step_time_derived=not job.repeat)
        loop = make(rules=CONFIRM)
        while (job := loop.next_job()) is not None and not job.repeat:
            state, reason = backend.begin(job)
            loop.on_trial_end(state=state, reason=reason)
        loop.on_trial_end(state="failed", reason="", started=False)
        again = loop.next_job()
        assert job is not None and again is not None and again.repeat == 1 and again.rungs == job.rungs

    @pytest.mark.parametrize("searcher", searchers.NAMES)
    def test_where_nothing_fits_every_layout_is_tried_at_its_smallest_rung(
        self, make: Make, backend: Backend, study: Study, searcher: str
    ) -> None:
        backend.play = out_of_memory
        backend.run(make(searcher=searcher, rules=CONFIRM))
        assert sorted(job.layout.id for job in backend.jobs) == sorted(layout.id for layout in LAYOUTS)
        assert outcomes(study) == [(1, Outcome.OOM)] * 3
        assert winner(history_of(study).measurements) is None

    @pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.THRASH, Outcome.DIVERGED, Outcome.HUNG, Outcome.FAILED])
    def test_what_ends_a_ladder_ends_it_for_a_resumed_study_too(
        self, make: Make, backend: Backend, outcome: Outcome
    ) -> None:
        backend.play = lambda job, batch: (
            fast(job, batch) if batch.micro_batch == 1 else result(job, batch, None, outcome=outcome, reason="so")
        )
        backend.run(make())
        assert backend.order == ALL_RUNGS
        backend.run(make())
        assert backend.order == ALL_RUNGS, "nothing ran again"


class TestResume:
    def test_a_trial_s_number_is_never_given_twice(self, make: Make, backend: Backend, study: Study) -> None:
        """Checks a journal without the first trial's first line, whose end would settle another trial of the same
        number.
        """
        backend.run(make(max_trials=2))
        lines = study.journal.read_text().splitlines(keepends=True)
        lost = next(line for line in lines if '"trial_start"' in line)
        study.journal.write_text("".join(line for line in lines if line is not lost))
        study.record(Resume())
        job = make().next_job()
        assert job is not None and job.trial_id == "t0003"

    def test_a_finished_study_runs_nothing(self, make: Make, backend: Backend) -> None:
        backend.run(make())
        loop = make()
        assert loop.next_job() is None and loop.ended_reason == "every layout of the space was tried"

    @pytest.mark.parametrize("searcher", searchers.NAMES)
    def test_a_killed_study_runs_what_is_missing_and_measures_nothing_twice(
        self, make: Make, backend: Backend, study: Study, searcher: str
    ) -> None:
        """Kills each session in its second rung, wherever that is, until nothing is left."""
        sessions = 0
        while (job := make(searcher=searcher).next_job()) is not None:
            sessions += 1
            backend.begin(dataclasses.replace(job, rungs=job.rungs[:1]))
            if job.rungs[1:]:
                study.record(RungStart(trial_id=job.trial_id, batch=job.rungs[1], deadline_s=60))
            study.record(Resume())  # killed before: neither the trial's end nor the session's is there
            assert sessions <= 9
        assert sessions == 9
        history = history_of(study)
        assert study.journal.read_text().count('"kind":"measurement"') == len(history.measurements) == 9
        lost = [
            history.num_lost(candidate.key, micro_batch)
            for candidate in candidates()
            for micro_batch in candidate.micro_batches
        ]
        # A whole ladder loses each rung but its first once; the guided search may begin one anywhere.
        assert max(lost) == 1 if searcher == "guided" else lost == [0, 1, 1] * 3

    def test_an_interrupted_ladder_goes_on_with_the_memory_it_saw(self, make: Make, backend: Backend) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement | TimeOut:
            if batch.micro_batch == 4:
                return TimeOut()
            gib = 0.5 * batch.micro_batch
            return result(job, batch, peak_forward_backward_gib=gib, peak_optimizer_gib=gib / 2)

        backend.play = play
        backend.step(make())
        job = make().next_job()
        assert job is not None and job.layout == LAYOUTS[0]
        assert [batch.micro_batch for batch in job.rungs] == [4]
        memory_points = [
            (memory_point.micro_batch, memory_point.forward_backward_gib, memory_point.optimizer_gib)
            for memory_point in job.known_memory
        ]
        assert memory_points == [(1, 0.5, 0.25), (2, 1.0, 0.5)]

    def test_a_rung_that_was_skipped_may_run_under_another_plan(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        small = tuple(dataclasses.replace(candidate, micro_batches=(1,)) for candidate in candidates())
        backend.run(make(small))
        backend.run(make())
        assert backend.order[3:] == [(layout, (2, 4)) for layout in LAYOUTS]
        assert len(history_of(study).measurements) == 9

    def test_a_searcher_is_told_what_is_finished_before_it_is_asked(
        self, make: Make, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend.run(make(max_trials=2))
        shown: list[tuple[Layout, list[int]]] = []

        class Listener(Sweep[Candidate]):
            def update(self, candidate: Candidate, measurements: Sequence[Observation]) -> None:
                shown.append((candidate.layout, [measurement.batch.micro_batch for measurement in measurements]))
                super().update(candidate, measurements)

        monkeypatch.setattr("platform.searchers.sweep.Sweep", Listener)
        make()
        assert shown == [(layout, [1, 2, 4]) for layout in LAYOUTS[:2]]

    def test_trial_numbers_go_on(self, make: Make, backend: Backend) -> None:
        backend.run(make(max_trials=1))
        backend.run(make(max_trials=1))
        assert [job.trial_id for job in backend.jobs] == ["t0001", "t0002"]

    def test_the_peak_is_measured_once(self, make: Make, backend: Backend, study: Study) -> None:
        loop = make()
        job = loop.next_job()
        assert job is not None and job.matmul_peak_tflops is None
        assert job.datasheet_peak_tflops is None, "a CPU's"
        study.record(Peak(device="Made-up CPU", precision="fp32", tflops=0.5))
        state, reason = backend.begin(job)
        loop.on_trial_end(state=state, reason=reason)
        again = loop.next_job()
        assert again is not None and again.matmul_peak_tflops == 0.5
        resumed = make().next_job()
        assert resumed is not None and resumed.matmul_peak_tflops == 0.5


class TestFixedAccumulation:
    """Each accumulation is confirmed and gated once, whatever global batches its micro-batches make."""

    def test_one_last_run_and_one_gate_for_each_accumulation(self, make: Make, backend: Backend, study: Study) -> None:
        fixed = [dataclasses.replace(RECIPE, global_batch=0, grad_accum=count) for count in (4, 32)]
        rules = ConfirmationRules(repeats=1, finalists=1, gate=GateSize(steps=2, sequences=8))
        backend.run(make(candidates(*fixed), rules=rules))
        history = history_of(study)
        sizes = {
            (measurement.recipe.grad_accum, measurement.batch.micro_batch): measurement.global_batch
            for measurement in history.measurements
        }
        assert sizes == {(4, 1): 8, (4, 2): 16, (4, 4): 32, (32, 1): 64, (32, 2): 128, (32, 4): 256}
        finals = [job for job in backend.jobs if job.repeat or not job.rungs]
        shown = [(job.recipe.grad_accum, job.repeat, job.is_winner_run, bool(job.gate)) for job in finals]
        kinds = ((1, False, False), (2, True, True), (0, False, True))  # again; its last run, gated; the reference
        assert shown == [(count, *kind) for count in (4, 32) for kind in kinds]
        assert [gate.recipe.grad_accum for gate in history.gates] == [4, 4, 32, 32]
        best = {recipe_result.recipe.id: won for recipe_result, won in StudyResult.of(history).winners}
        assert {best_measurement.global_batch for best_measurement in best.values()} == {32, 256}
        backend.run(make(candidates(*fixed), rules=rules))
        assert len(backend.jobs) == 6 + len(finals), "a resumed study runs none of it again"


SET_BACK = """
import sys, time
set_back_s, time_of_day = [0.0], time.time
time.time = lambda: time_of_day() - set_back_s[0]

from pathlib import Path
import conftest
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.loop import SearchLoop
from platform.searchers import create
from platform.searchers.problem import Problem
from platform.study.study import Study
from tests.samples import header
from tests.search.loop.backend import CLUSTER, RECIPE, Backend, Clock, candidates, fast
from trainers.records.job import Timing

def play(job, batch):
    set_back_s[0] += 7200.0  # while the trial runs
    return fast(job, batch)

with Study.create(Path(sys.argv[1]), "made-up") as study:
    study.record(header("made-up", recipes=(RECIPE,), cluster=CLUSTER))
    settings = TrialSettings(
        cluster=CLUSTER, cpus_per_worker=1.0, recorder="none", commit="0", cap_gib=2.0, timing=Timing(), rules=None
    )
    within = candidates()
    searcher = create("sweep", Problem(candidates=within))
    budget = Budget(time_s=3600.0)
    loop = SearchLoop(study=study, candidates=within, searcher=searcher, budget=budget, settings=settings)
    Backend(study, Clock(), play).run(loop)
    assert loop.spending.gpu_s > 0, loop.spending.gpu_s
    assert 3500.0 < loop.spending.time_left_s() < 3600.0, loop.spending.time_left_s()
"""


def test_a_clock_that_is_set_back_changes_no_budget_and_no_device_seconds(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SET_BACK, str(tmp_path)], cwd=ROOT, check=True)
    ends = [line for line in Tail(tmp_path / "made-up" / "journal.jsonl").read() if isinstance(line, TrialEnd)]
    assert len(ends) == len(candidates())
    assert all(0 < end.gpu_s < 60.0 and 0 < end.wall_s < 60.0 for end in ends), ends
