"""The final runs after a search: a fake backend plays the trials, the study is real."""

import dataclasses

import pytest

from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.result.ranking import winner
from platform.study.study import Study
from tests.search.loop.backend import (
    ALL_RUNGS,
    CONFIRM,
    LAYOUTS,
    OTHER,
    RECIPE,
    Backend,
    Died,
    Make,
    TimeOut,
    candidates,
    fast,
    history_of,
    out_of_memory,
    result,
)
from trainers.records.job import GateSize, Job
from trainers.records.journal import Resume
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint


class TestConfirming:
    """A winner whose time was derived from a shorter accumulation is measured at a longer one."""

    @staticmethod
    def derived(job: Job, batch: BatchPoint) -> Measurement:
        return dataclasses.replace(fast(job, batch), step_time_derived=job.repeat == 0)

    def test_the_winner_is_measured_once_more(self, make: Make, backend: Backend, study: Study) -> None:
        backend.play = self.derived
        backend.run(make(rules=CONFIRM))
        assert backend.order == [*ALL_RUNGS, (LAYOUTS[0], (4,))]
        assert [job.repeat for job in backend.jobs] == [0, 0, 0, 1]
        best = winner(history_of(study).measurements)
        assert best is not None and best.repeat == 1 and not best.step_time_derived
        backend.run(make(rules=CONFIRM))
        assert len(backend.jobs) == 4, "a resumed study does not confirm again"

    def test_a_time_that_was_measured_is_not(self, make: Make, backend: Backend) -> None:
        backend.run(make(rules=CONFIRM))
        assert backend.order == ALL_RUNGS

    def test_where_it_falls_behind_the_next_one_is_confirmed_too(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement:
            if job.repeat and job.layout == LAYOUTS[0]:
                return result(job, batch, 3850.0)  # 4000 derived; the next one has 3900 derived
            return self.derived(job, batch)

        backend.play = play
        backend.run(make(rules=CONFIRM))
        assert backend.order[3:] == [(LAYOUTS[0], (4,)), (LAYOUTS[1], (4,))]
        best = winner(history_of(study).measurements)
        assert best is not None and (best.layout, best.repeat, best.tokens_per_s) == (LAYOUTS[1], 1, 3900.0)

    @pytest.mark.parametrize("ends", ["dies", "runs out of memory"])
    def test_a_winner_that_cannot_be_confirmed_does_not_win(
        self, make: Make, backend: Backend, study: Study, ends: str
    ) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement | Died:
            if job.repeat and job.layout == LAYOUTS[0] and batch.micro_batch == 4:
                return Died() if ends == "dies" else out_of_memory(job, batch)
            return self.derived(job, batch)

        backend.play = play
        backend.run(make(rules=CONFIRM))
        tries = 2 if ends == "dies" else 1
        assert [job.layout for job in backend.jobs[3:]] == [LAYOUTS[0]] * tries + [LAYOUTS[1]]
        assert all(job.repeat == 1 for job in backend.jobs[3:])
        best = winner(history_of(study).measurements)
        assert best is not None and (best.layout, best.repeat) == (LAYOUTS[1], 1)

    def test_a_confirming_run_that_dies_once_is_run_again(self, make: Make, backend: Backend, study: Study) -> None:
        deaths = iter([True])

        def play(job: Job, batch: BatchPoint) -> Measurement | Died:
            return Died() if job.repeat and next(deaths, False) else self.derived(job, batch)

        backend.play = play
        backend.run(make(rules=CONFIRM))
        assert [(job.layout, job.repeat) for job in backend.jobs[3:]] == [(LAYOUTS[0], 1)] * 2
        best = winner(history_of(study).measurements)
        assert best is not None and (best.layout, best.repeat) == (LAYOUTS[0], 1)

    def test_each_recipe_s_winner_is_confirmed(self, make: Make, backend: Backend) -> None:
        backend.play = self.derived
        backend.run(make(candidates(RECIPE, OTHER), rules=CONFIRM))
        assert [(job.recipe, job.repeat) for job in backend.jobs[6:]] == [(RECIPE, 1), (OTHER, 1)]

    def test_a_budget_keeps_time_for_it(self, make: Make, backend: Backend) -> None:
        """Checks a budget of 32 s, of which the third layout would leave too little: a trial takes 8 s, a last run 4 s
        more.
        """
        backend.play = self.derived
        loop = make(rules=CONFIRM, time_s=32.0)
        backend.run(loop)
        assert backend.order == [*ALL_RUNGS[:2], (LAYOUTS[0], (4,))]
        assert "too short for a trial beside the final runs" in loop.ended_reason

    def test_it_is_not_to_blame_where_too_little_is_left_for_any_trial(self, make: Make, backend: Backend) -> None:
        def play(job: Job, batch: BatchPoint) -> Measurement:
            if job.layout == LAYOUTS[1]:  # only now does a last run follow
                return dataclasses.replace(result(job, batch, 5000.0), step_time_derived=not job.repeat)
            return fast(job, batch)

        backend.play = play
        loop = make(rules=CONFIRM, time_s=23.0)
        backend.run(loop)
        assert loop.ended_reason == "the 7 s that are left of the budget are too short for a trial"

    def test_no_time_is_kept_where_no_run_would_follow(self, make: Make, backend: Backend) -> None:
        backend.run(make(rules=CONFIRM, time_s=26.0))
        assert backend.order == ALL_RUNGS

    def test_there_is_no_time_for_it(self, make: Make, backend: Backend) -> None:
        backend.play = self.derived
        backend.run(make(rules=CONFIRM, time_s=8.0))
        assert backend.order == ALL_RUNGS[:1]

    def test_a_confirming_trial_that_leaves_nothing_does_not_keep_the_search_from_ending(
        self, make: Make, backend: Backend
    ) -> None:
        backend.play = lambda job, batch: TimeOut() if job.repeat else self.derived(job, batch)
        backend.run(make(rules=CONFIRM))
        assert [job.repeat for job in backend.jobs] == [0, 0, 0, 1]


class TestFinals:
    """The final runs: the finalists' runs, the winner's last, its gate. `backend` plays the gates too."""

    RULES = ConfirmationRules(repeats=3, gate=GateSize(steps=2, sequences=8))

    def test_the_best_three_points_run_in_turn_and_the_winner_passes_its_gate(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        plain, other_layouts = LAYOUTS[2], LAYOUTS[:2]
        backend.play = lambda job, batch: result(
            job,
            batch,
            100.0 * batch.micro_batch + 300.0 * (job.layout in other_layouts),
            measured_grad_accum=8 if job.is_winner_run else 3,
        )
        backend.run(make(rules=self.RULES))
        finals = backend.jobs[3:]
        assert [(LAYOUTS.index(job.layout), job.rungs[0].micro_batch) for job in finals[:3]] == [(0, 4), (1, 4), (0, 2)]
        assert [job.repeat for job in finals[:10]] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
        assert [job.is_winner_run for job in finals] == [False] * 9 + [True, False]
        assert [bool(job.gate) for job in finals] == [False] * 9 + [True, True]
        assert finals[-1].layout == plain and not finals[-1].rungs, "the reference ran its gate alone"
        history = history_of(study)
        assert [gate.is_reference for gate in history.gates] == [False, True]
        best = winner(history.measurements)
        assert best is not None and (best.layout, best.repeat) == (LAYOUTS[0], 4)
        backend.run(make(rules=self.RULES))
        assert len(backend.jobs) == 14, "a resumed study runs none of it again"

    def test_a_winner_with_other_curves_does_not_win(self, make: Make, backend: Backend, study: Study) -> None:
        backend.play = lambda job, batch: result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))
        backend.losses = lambda job: (2.0, 1.0 + 0.1 * (job.layout == LAYOUTS[0]))
        backend.run(make(rules=dataclasses.replace(self.RULES, repeats=0)))
        history = history_of(study)
        best = winner(history.measurements)
        assert best is not None and best.layout == LAYOUTS[1]
        disqualified = [measurement for measurement in history.measurements if measurement.phase == "gate"]
        assert {measurement.layout for measurement in disqualified} == {LAYOUTS[0]} and len(disqualified) == 3, (
            "every point of the layout"
        )
        assert all(
            "gate failed" in measurement.reason and measurement.outcome is Outcome.FAILED
            for measurement in disqualified
        )
        assert [gate.layout for gate in history.gates] == [LAYOUTS[0], LAYOUTS[2], LAYOUTS[1]], "one reference will do"

    def test_nor_where_the_session_was_cut_before_it_could_say_so(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        """Resumes a session that was cut with both curves in the journal, but without an end of the reference's
        trial.
        """
        backend.play = lambda job, batch: result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))
        backend.losses = lambda job: (2.0, 1.0 + 0.1 * (job.layout == LAYOUTS[0]))
        rules = dataclasses.replace(self.RULES, repeats=0)
        loop = make(rules=rules)
        while (job := loop.next_job()) and (state := backend.begin(job)) and (job.rungs or job.layout != LAYOUTS[2]):
            loop.on_trial_end(job.trial_id, state=state[0], reason=state[1])
        study.record(Resume())
        backend.run(make(rules=rules))
        best = winner(history_of(study).measurements)
        assert best is not None and best.layout == LAYOUTS[1]

    def test_the_plainest_layout_is_held_to_another_one(self, make: Make, backend: Backend, study: Study) -> None:
        backend.play = lambda job, batch: result(job, batch, 1000.0 + 100.0 * LAYOUTS.index(job.layout))
        backend.losses = lambda job: (2.0, 1.0)
        backend.run(make(rules=dataclasses.replace(self.RULES, repeats=0)))
        gates = [(gate.layout, gate.is_reference) for gate in history_of(study).gates]
        assert len(gates) == 2 and gates[0] == (LAYOUTS[2], False)
        assert gates[1][1] and gates[1][0] != LAYOUTS[2]

    def test_a_single_layout_has_no_gate(self, make: Make, backend: Backend, study: Study) -> None:
        backend.run(make(candidates()[:1], rules=dataclasses.replace(self.RULES, repeats=0)))
        assert not history_of(study).gates

    def test_a_reference_that_cannot_run_is_replaced(self, make: Make, backend: Backend, study: Study) -> None:
        backend.play = lambda job, batch: result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))
        backend.losses = lambda job: None if job.layout == LAYOUTS[2] else (2.0, 1.0)
        backend.run(make(rules=dataclasses.replace(self.RULES, repeats=0)))
        assert [job.layout for job in backend.jobs[3:]] == [LAYOUTS[0], LAYOUTS[2], LAYOUTS[1]]
        assert [gate.layout for gate in history_of(study).gates] == [LAYOUTS[0], LAYOUTS[1]]

    def test_every_point_runs_again_where_all_are_asked_for(self, make: Make, backend: Backend) -> None:
        backend.run(make(candidates()[:2], rules=ConfirmationRules(repeats=2, finalists=None)))
        assert len(backend.jobs) == 2 + 2 * 6 + 1
        assert all(job.incumbent_tokens_per_s is None for job in backend.jobs), "none is cut short"

    def test_a_search_s_job_knows_what_it_has_to_beat(self, make: Make, backend: Backend) -> None:
        backend.run(make(candidates(RECIPE, OTHER)))
        assert [job.incumbent_tokens_per_s for job in backend.jobs] == [None, None] + [4000.0] * 4


class TestProfiling:
    """`--profile`: the winner has one more trial, which measures nothing."""

    RULES = ConfirmationRules(repeats=0, profile=True)

    def test_each_winner_is_profiled_once_after_all_else(self, make: Make, backend: Backend, study: Study) -> None:
        backend.play = TestConfirming.derived
        backend.run(make(candidates(RECIPE, OTHER), rules=self.RULES))
        assert [bool(job.rungs) for job in backend.jobs] == [True] * 8 + [False] * 2
        last = backend.jobs[-2:]
        assert [(job.recipe, job.layout) for job in last] == [(RECIPE, LAYOUTS[0]), (OTHER, LAYOUTS[0])]
        assert [job.profile and job.profile.micro_batch for job in last] == [4, 4]
        history = history_of(study)
        assert [(profile.recipe, profile.batch) for profile in history.profiles] == [
            (job.recipe, job.profile) for job in last
        ]
        assert len(history.measurements) == 20 and not history.profile_failure()
        backend.run(make(candidates(RECIPE, OTHER), rules=self.RULES))
        assert len(backend.jobs) == 10, "a resumed study does not profile again"

    def test_a_finished_study_is_profiled_when_it_is_asked_for(self, make: Make, backend: Backend) -> None:
        backend.run(make(rules=CONFIRM))
        assert backend.order == ALL_RUNGS
        backend.run(make(rules=self.RULES))
        assert backend.order == [*ALL_RUNGS, (LAYOUTS[0], ())]

    def test_one_that_fails_costs_the_winner_nothing(self, make: Make, backend: Backend, study: Study) -> None:
        backend.profiles = False
        backend.run(make(rules=self.RULES))
        assert backend.order == [*ALL_RUNGS, (LAYOUTS[0], ())], "tried once in a session"
        history = history_of(study)
        best = winner(history.measurements)
        assert best is not None and best.layout == LAYOUTS[0] and not history.profiles
        assert history.profile_failure() == "no kernel was seen"
        backend.profiles = True
        backend.run(make(rules=self.RULES))
        assert len(history_of(study).profiles) == 1 and not history_of(study).profile_failure()

    def test_beside_the_gate_s_reference_of_the_same_layout(self, make: Make, backend: Backend, study: Study) -> None:
        """Checks that the plainest layout is still profiled: it ran the gate as the reference of the first winner,
        which failed it, and then wins itself.
        """
        backend.play = lambda job, batch: result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))
        backend.losses = lambda job: (2.0, 1.0 + 0.1 * (job.layout != LAYOUTS[2]))
        backend.run(make(rules=dataclasses.replace(self.RULES, gate=GateSize(steps=2, sequences=8))))
        assert [profile.layout for profile in history_of(study).profiles] == [LAYOUTS[2]]
