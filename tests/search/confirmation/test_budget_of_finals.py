"""Final runs within a budget, and over several sessions: a fake backend plays the trials, the study is real."""

import dataclasses
from collections.abc import Callable

import pytest

from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.result.gate import verdict_on
from platform.study.result.ranking import winner
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import layout
from tests.search.loop.backend import (
    OTHER,
    RECIPE,
    Backend,
    Clock,
    Make,
    TimeOut,
    history_of,
    result,
)
from tests.wording import Wording
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Resume
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint


class TestBudgetOfTheFinals:
    """Time for a winner's own final trials, which come before further runs of the finalists; its gate runs only where
    the reference's can run too.
    """

    RULES = ConfirmationRules(repeats=3, gate=GateSize(steps=2, sequences=4))
    MANY = tuple(
        Candidate(recipe=RECIPE, layout=candidate_layout, micro_batches=(4,))
        for candidate_layout in (
            *(layout(dp_shard=2, attention="sdpa", bucket_mib=n) for n in range(1, 13)),
            layout(dp_shard=2),
        )
    )
    """Candidates of twelve layouts, and of the layout that is their reference for numerics."""

    @pytest.fixture
    def slow(self, backend: Backend) -> Backend:
        """Returns a backend whose trials take 8 s and whose gates take 6 s. A step of 512 tokens takes 12.5 s, so the
        last run is estimated to need 58 s, its gate 6 s, and the gate of its reference, which comes last and has not
        run, 32 s: start and three steps at 2.5 times the winner's; the nine runs 72 s.
        """
        backend.start_s, backend.rung_s, backend.gate_s = 7.0, 1.0, 6.0
        backend.play = lambda job, batch: result(job, batch, 40.0 + (job.layout.bucket_mib == 1))
        return backend

    @staticmethod
    def as_estimated(clock: Clock) -> Callable[[Job, BatchPoint], Measurement]:
        """Returns what a backend plays whose trial of the winner's run takes as long as estimated."""

        def play(job: Job, batch: BatchPoint) -> Measurement:
            clock.now_s += 46.0 * job.is_winner_run
            return result(job, batch, 40.0 + (job.layout.bucket_mib == 1))

        return play

    def test_a_winner_passes_its_gate_within_the_budget_and_what_is_left_out_is_told(
        self, make: Make, slow: Backend, study: Study, clock: Clock, wording: Wording
    ) -> None:
        began_s = clock.now_s
        slow.play = self.as_estimated(clock)
        loop = make(self.MANY, rules=self.RULES, time_s=170.0)
        slow.run(loop)
        searched = [job for job in slow.jobs if job.rungs and not job.repeat]
        run, reference, *again = slow.jobs[len(searched) :]
        assert [(job.is_winner_run, bool(job.gate), job.repeat) for job in (run, reference)] == [
            (True, True, 4),
            (False, True, 0),
        ]
        assert [(job.is_winner_run, job.repeat) for job in again] == [(False, 1)] * 3, "in what is left"
        assert len(searched) == 8 and clock.now_s - began_s <= 170.0
        wording(loop.left_out)
        history = history_of(study)
        best = winner(history.measurements)
        assert best is not None and best.layout.bucket_mib == 1
        assert verdict_on(best.layout, RECIPE, history.gates)

    def test_the_search_leaves_time_for_it(self, make: Make, slow: Backend, study: Study, clock: Clock) -> None:
        began_s = clock.now_s
        loop = make(self.MANY, rules=self.RULES, time_s=170.0)
        slow.run(loop)
        searched = [job for job in slow.jobs if job.rungs and not job.repeat]
        assert len(searched) == 8
        assert "too short for a trial beside the final runs" in loop.ended_reason
        assert winner(history_of(study).measurements) and "run with" not in loop.left_out
        stops_s = [job.stop_at_s - began_s for job in searched if job.stop_at_s]
        assert stops_s[0] == pytest.approx(170 / 3), "the first layout's share"
        assert 56 < stops_s[-1] < 170 - 96, "none of its rungs begins in the finals' time"

    def test_without_time_for_the_gate_it_leaves_that_of_the_last_run_and_a_later_session_runs_the_gate_alone(
        self, make: Make, slow: Backend, study: Study, clock: Clock, wording: Wording
    ) -> None:
        """Checks a budget of 100 s: after two layouts 84 s are left, too little for the gate, so time is kept for the
        last run alone.
        """
        began_s = clock.now_s
        rules = dataclasses.replace(self.RULES, repeats=0)

        def play(job: Job, batch: BatchPoint) -> Measurement:
            clock.now_s += 46.0 * job.is_winner_run  # it takes what it is estimated to
            return result(job, batch, 40.0 + (job.layout.bucket_mib == 1), step_time_derived=not job.repeat)

        slow.play = play
        loop = make(self.MANY, rules=rules, time_s=100.0)
        slow.run(loop)
        *searched, last = slow.jobs
        assert len(searched) == 5 and (last.is_winner_run, last.gate) == (True, None) and clock.now_s - began_s <= 100.0
        assert "about 60 s" in loop.left_out
        wording(loop.left_out)
        study.record(Resume())
        loop = make(self.MANY, rules=rules, max_trials=0)
        alone, reference = slow.run(loop)[-2:]
        assert (alone.layout, alone.rungs, alone.is_winner_run, reference.is_winner_run) == (
            last.layout,
            (),
            True,
            False,
        )
        history = history_of(study)
        assert [gate.is_reference for gate in history.gates] == [False, True] and len(slow.jobs) == 8
        assert verdict_on(last.layout, RECIPE, history.gates) and not loop.left_out

    def test_what_a_further_session_needs_counts_the_slow_start_of_its_first_trial(
        self, make: Make, slow: Backend, clock: Clock
    ) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement:
            clock.now_s += 46.0 * job.is_winner_run + 12.0 * (len(slow.jobs) == 1)
            return result(job, batch, 40.0 + (job.layout.bucket_mib == 1), step_time_derived=not job.repeat)

        slow.play = play
        loop = make(self.MANY, rules=dataclasses.replace(self.RULES, repeats=0), time_s=100.0)
        slow.run(loop)
        assert "about 70 s" in loop.left_out, "60 where it starts as the others do"

    def test_a_profile_that_is_asked_for_comes_before_the_finalists_runs(
        self, make: Make, slow: Backend, study: Study, clock: Clock
    ) -> None:
        rules = dataclasses.replace(self.RULES, profile=True)
        slow.play = self.as_estimated(clock)
        loop = make(self.MANY, rules=rules, time_s=215.0)
        slow.run(loop)
        assert "runs of 3 finalists" in loop.left_out, "for which there was no time"
        assert slow.jobs[-1].profile and len(history_of(study).profiles) == 1

    def test_time_that_is_left_goes_to_pairs_of_runs_though_it_holds_no_other_winner_s_last_run(
        self, make: Make, slow: Backend, clock: Clock
    ) -> None:
        """Checks two layouts with a budget in which the last run, estimated to need 58 s, is over after 12 s."""
        began_s = clock.now_s
        loop = make(self.MANY[:2], rules=dataclasses.replace(self.RULES, repeats=2), time_s=78.0)
        slow.run(loop)
        finals = [job for job in slow.jobs if job.repeat]
        runs = [(job.layout, job.repeat) for job in finals if not job.is_winner_run]
        assert finals[0].is_winner_run and sorted(runs[:2], key=str) == sorted(
            ((candidate.layout, 1) for candidate in self.MANY[:2]), key=str
        )
        assert clock.now_s - began_s <= 78.0

    @pytest.mark.parametrize("time_s", [218.0, 233.0, 248.0])
    def test_room_is_kept_for_the_profile_of_each_recipe_s_winner(
        self, time_s: float, make: Make, slow: Backend, study: Study
    ) -> None:
        within = [
            dataclasses.replace(candidate, recipe=recipe) for recipe in (RECIPE, OTHER) for candidate in self.MANY[-5:]
        ]
        slow.gate_s = 0.0  # all takes what it is estimated to take: nothing of one part is left to another
        slow.play = lambda job, batch: result(job, batch, 10_000.0)
        loop = make(within, rules=dataclasses.replace(self.RULES, profile=True), time_s=time_s)
        slow.run(loop)
        assert "runs of 3 finalists" in loop.left_out and "numerics gate" not in loop.left_out
        assert [profile.recipe for profile in history_of(study).profiles] == [RECIPE, OTHER]

    def test_each_recipe_is_tried_before_room_is_kept_for_a_winner_s_final_runs(
        self, make: Make, slow: Backend
    ) -> None:
        """Checks that the second recipe is tried although only 92 s are left, which would begin no other trial if they
        kept the 96 s that the first recipe's final runs are estimated to take.
        """
        both = [dataclasses.replace(candidate, recipe=recipe) for recipe in (RECIPE, OTHER) for candidate in self.MANY]
        loop = make(both, rules=dataclasses.replace(self.RULES, repeats=0), time_s=100.0)
        slow.run(loop)
        assert [job.recipe for job in slow.jobs[:2]] == [RECIPE, OTHER] and not slow.jobs[1].repeat

    @pytest.mark.parametrize(("time_s", "is_gated"), [(40.0, False), (100.0, False), (104.0, True)])
    def test_no_winner_is_profiled_before_its_gate(
        self, time_s: float, is_gated: bool, make: Make, slow: Backend
    ) -> None:
        """Checks that nothing is profiled without time for the gate, since the layout is no winner yet. Of 100 s, five
        layouts and the last run, played in 12 s, leave 48 s, of 104 s 52 s; the gate alone needs 46 s and a tenth more.
        """
        rules = dataclasses.replace(self.RULES, profile=True)
        loop = make(self.MANY, rules=rules, time_s=time_s)
        slow.run(loop)
        assert any(job.profile for job in slow.jobs) == is_gated == ("numerics gate" not in loop.left_out)

    def test_after_three_references_that_cannot_run_a_winner_goes_without_one_in_that_session(
        self, make: Make, slow: Backend
    ) -> None:
        slow.losses = lambda job: (2.0, 1.0) if job.is_winner_run else None
        for rules in (dataclasses.replace(self.RULES, repeats=0), dataclasses.replace(self.RULES, repeats=0)):
            begun = len(slow.jobs)
            loop = make(self.MANY, rules=rules, max_trials=2)
            slow.run(loop)
            references = [job.layout for job in slow.jobs[begun:] if job.gate and not job.is_winner_run]
            assert len(references) == len(set(references)) == 3
            assert loop.left_out.startswith("the reference of the numerics gate")

    def test_with_time_for_all_the_finalists_run_first(self, make: Make, slow: Backend) -> None:
        slow.run(make(self.MANY, rules=self.RULES, time_s=500.0))
        assert [job.repeat for job in slow.jobs[13:]] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 0]

    def test_a_resumed_study_begins_with_the_final_runs_that_were_cut(
        self, make: Make, slow: Backend, study: Study
    ) -> None:
        """Resumes a study that was cut in its search, after the winner's gate had run and before the
        reference's had.
        """
        loop = make(self.MANY, rules=self.RULES, time_s=130.0)
        while (job := slow.step(loop)) is not None and not job.is_winner_run:
            pass
        searched = len(slow.jobs) - 1
        assert searched < len(self.MANY)
        study.record(Resume())
        loop = make(self.MANY, rules=self.RULES)
        slow.run(loop)
        assert [job.repeat for job in slow.jobs[searched + 1 :]][:9] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        reference, *later_jobs = slow.jobs[searched + 10 :]
        assert reference.gate and not reference.rungs
        assert [job.repeat for job in later_jobs][: 13 - searched] == [0] * (13 - searched), "then the search goes on"
        assert not loop.left_out

    def test_one_killed_in_its_first_final_run_begins_there_too(self, make: Make, slow: Backend, study: Study) -> None:
        loop = make(self.MANY, rules=self.RULES, max_trials=2)
        for _ in range(2):
            slow.step(loop)
        assert (first := loop.next_job()) is not None and first.repeat == 1
        study.record(Resume())
        again = make(self.MANY, rules=self.RULES).next_job()
        assert again is not None and (again.layout, again.repeat) == (first.layout, 1)

    def test_one_that_ended_before_its_first_final_run_begins_there_too(
        self, make: Make, slow: Backend, study: Study, wording: Wording
    ) -> None:
        """Resumes with the seconds that the first session asked for, though it left layouts of the space untried."""
        rules = dataclasses.replace(self.RULES, repeats=0)
        loop = make(self.MANY, rules=rules, time_s=70.0)
        slow.run(loop)
        searched = len(slow.jobs)
        assert searched < len(self.MANY) and all(job.rungs and not job.repeat for job in slow.jobs)
        assert "about 120 s" in loop.left_out
        wording(loop.left_out)
        study.record(End(exit_code=0, wall_s=70, gpu_s=140, left_out=loop.left_out))
        study.record(Resume())
        loop = make(self.MANY, rules=rules, time_s=120.0)
        slow.run(loop)
        last, reference = slow.jobs[searched : searched + 2]
        assert last.is_winner_run and last.gate and reference.gate and not reference.rungs and not loop.left_out

    def test_a_slow_start_of_a_further_session_takes_no_time_from_its_gate(
        self, make: Make, slow: Backend, study: Study, clock: Clock
    ) -> None:
        """Resumes with 125 s: two finalists' runs of 8 s leave the 104 s that are kept for the last run and its gate,
        but not in a session that they begin 12 s more slowly.
        """
        sessions = [len(slow.jobs)]

        def play(job: Job, batch: BatchPoint) -> Measurement:
            clock.now_s += 46.0 * job.is_winner_run + 12.0 * (len(slow.jobs) == sessions[-1] + 1)
            return result(job, batch, 40.0 + (job.layout.bucket_mib == 1), step_time_derived=not job.repeat)

        slow.play = play
        loop = make(self.MANY, rules=self.RULES)
        for _ in range(2):
            slow.step(loop)
        sessions.append(len(slow.jobs))
        study.record(End(exit_code=0, wall_s=28, gpu_s=56, left_out=loop.left_out))
        study.record(Resume())
        loop = make(self.MANY, rules=self.RULES, time_s=125.0)
        slow.run(loop)
        last, reference = slow.jobs[sessions[-1] :][:2]
        assert last.is_winner_run and last.gate and reference.gate and "gate" not in loop.left_out

    @pytest.mark.parametrize("missing", ["a point of --all", "a recipe"])
    def test_but_what_is_asked_for_and_was_never_run_comes_first(
        self, missing: str, make: Make, slow: Backend, study: Study
    ) -> None:
        every_point = missing == "a point of --all"
        rules = dataclasses.replace(self.RULES, repeats=0, finalists=None if every_point else 3)
        last = self.MANY[1] if every_point else dataclasses.replace(self.MANY[1], recipe=OTHER)
        candidates = (self.MANY[0], self.MANY[-1], last)
        loop = make(candidates, rules=rules, time_s=17.0 if every_point else 9.0)
        slow.run(loop)
        assert len(slow.jobs) == (2 if every_point else 1) and all(job.rungs and not job.repeat for job in slow.jobs)
        assert "with the numerics gate" in loop.left_out and "more)" not in loop.left_out, "they would not suffice"
        study.record(End(exit_code=0, wall_s=20, gpu_s=40, left_out=loop.left_out))
        study.record(Resume())
        loop = make(candidates, rules=rules)
        slow.run(loop)
        job, *others = slow.jobs[2 if every_point else 1 :]
        assert (job.recipe, job.layout, job.repeat) == (last.recipe, last.layout, 0)
        assert next(other for other in others if other.repeat or not other.rungs).is_winner_run
        assert not loop.left_out

    def test_a_search_that_a_fault_ended_goes_on_before_any_final_run(
        self, make: Make, slow: Backend, study: Study
    ) -> None:
        loop = make(self.MANY, rules=self.RULES)
        slow.step(loop)
        for _ in range(3):
            job = loop.next_job()
            assert job is not None
            loop.on_trial_end(job.trial_id, state="failed", reason="no room for two workers", started=False)
        assert loop.next_job() is None and loop.fault and not loop.left_out
        study.record(End(exit_code=3, wall_s=20, gpu_s=40, left_out=loop.left_out))
        study.record(Resume())
        job = make(self.MANY, rules=self.RULES).next_job()
        assert job is not None and job.layout == self.MANY[1].layout and not job.repeat

    def test_nor_does_one_that_was_cut_after_earlier_final_runs_begin_with_a_new_leader_s(
        self, make: Make, slow: Backend, study: Study
    ) -> None:
        """Resumes a study with final runs, and again once its search was cut at a layout faster than their winner."""
        rules = dataclasses.replace(self.RULES, gate=None, repeats=1)
        slow.run(make(self.MANY, rules=rules, max_trials=1))
        assert [job.repeat for job in slow.jobs] == [0, 1, 2]
        study.record(End(exit_code=0, wall_s=90, gpu_s=180))
        study.record(Resume())
        slow.play = lambda job, batch: result(job, batch, 400.0)
        faster = slow.step(make(self.MANY, rules=rules))
        assert faster is not None and not faster.repeat
        study.record(End(exit_code=130, wall_s=20, gpu_s=40))
        study.record(Resume())
        job = make(self.MANY, rules=rules).next_job()
        assert job is not None and job.layout == self.MANY[2].layout and not job.repeat

    def test_nor_does_a_session_interrupted_in_its_search_between_the_two_change_that(
        self, make: Make, slow: Backend, study: Study
    ) -> None:
        rules = dataclasses.replace(self.RULES, repeats=0)
        slow.run(make(self.MANY, rules=rules, time_s=70.0))
        study.record(End(exit_code=0, wall_s=70, gpu_s=140, left_out="the winner's last run"))
        study.record(Resume())
        slow.step(make(self.MANY, rules=rules, time_s=20.0))
        study.record(End(exit_code=130, wall_s=20, gpu_s=40))
        study.record(Resume())
        job = make(self.MANY, rules=rules, time_s=120.0).next_job()
        assert slow.jobs[-1].repeat == 0 and job is not None and job.is_winner_run and job.gate

    def test_a_gate_that_took_the_time_of_the_winner_s_windows_does_not_cost_it_its_last_run(
        self, make: Make, slow: Backend, study: Study
    ) -> None:
        slow.play = lambda job, batch: TimeOut() if job.gate else result(job, batch, 41.0, step_time_derived=True)
        loop = make(self.MANY, rules=dataclasses.replace(self.RULES, repeats=0), max_trials=2)
        slow.run(loop)
        finals = [(job.is_winner_run, len(job.rungs), bool(job.gate)) for job in slow.jobs[2:]]
        assert finals == [(True, 1, True), (False, 0, True), (True, 1, False)] and not loop.left_out

    @pytest.mark.parametrize("deaths", [1, 2])
    def test_a_gate_alone_whose_worker_dies_is_tried_again_and_no_winner_profiled_without_it(
        self, deaths: int, make: Make, slow: Backend, study: Study
    ) -> None:
        slow.run(make(self.MANY, rules=ConfirmationRules(repeats=1), max_trials=2))
        begun = len(slow.jobs)
        dies = iter([True] * deaths)
        slow.losses = lambda job: None if job.is_winner_run and next(dies, False) else (2.0, 1.0)
        rules = dataclasses.replace(self.RULES, repeats=1, profile=True)
        loop = make(self.MANY, rules=rules, max_trials=0)
        slow.run(loop)
        gates = [job.is_winner_run for job in slow.jobs[begun:] if job.gate]
        assert gates == ([True, True, False] if deaths == 1 else [True, True])
        assert any(job.profile for job in slow.jobs) == (deaths == 1) == (not loop.left_out)
