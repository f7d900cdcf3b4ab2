"""Trials that fail, die, or never start, in the search loop: a fake backend plays them."""

import dataclasses

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.study.journal import Tail
from platform.study.result.ranking import winner
from platform.study.study import Study
from tests.search.loop.backend import (
    ALL_RUNGS,
    CONFIRM,
    LAYOUTS,
    Backend,
    Died,
    Make,
    TimeOut,
    candidates,
    fast,
    history_of,
    out_of_memory,
    outcomes,
    result,
)
from tests.wording import Wording
from trainers.records.job import Job
from trainers.records.journal import Measured, Resume, TrialEnd
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint


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
        loop.on_trial_end(job.trial_id, state="failed", reason="the process of rank 1 died: exit code 86")
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
        loop.on_trial_end(job.trial_id, state="failed", reason="the process of rank 1 died")
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
        self, make: Make, backend: Backend, study: Study, wording: Wording
    ) -> None:
        loop = make()
        for number in range(3):
            job = loop.next_job()
            assert job is not None
            loop.on_trial_end(
                job.trial_id, state="failed", reason="gone", nodes=("10.0.0.1", "10.0.0.2"), lost_nodes=["10.0.0.2"]
            )
            assert bool(loop.fault) == (number == 2)
        assert "all on node 10.0.0.2" in loop.fault
        wording(loop.fault)
        ends = [line for line in Tail(study.journal).read() if isinstance(line, TrialEnd)]
        assert {(end.state, end.fault, end.node) for end in ends} == {("interrupted", "node lost", "10.0.0.2")}

    def test_trials_that_never_start_end_the_session_and_stay_to_be_run(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        """Checks the loss of a node, for which no layout is to blame: a resumed study runs all layouts."""
        loop = make(rules=CONFIRM)
        for _ in range(3):
            job = loop.next_job()
            assert job is not None
            loop.on_trial_end(job.trial_id, state="failed", reason="no room for two workers", started=False)
        assert loop.next_job() is None and "no room for two workers" in loop.fault == loop.ended_reason
        assert not outcomes(study) and not history_of(study).finished
        study.record(Resume())
        backend.run(make())
        assert backend.order == ALL_RUNGS

    def test_one_trial_that_did_not_start_is_run_again(self, make: Make, backend: Backend, study: Study) -> None:
        loop = make()
        for _ in range(2):
            job = loop.next_job()
            assert job is not None
            loop.on_trial_end(job.trial_id, state="failed", reason="", started=False)
        backend.run(loop)
        assert backend.order == ALL_RUNGS and not loop.fault

    def test_a_confirming_trial_that_did_not_start_is_run_again(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        backend.play = lambda job, batch: dataclasses.replace(fast(job, batch), step_time_derived=not job.repeat)
        loop = make(rules=CONFIRM)
        while (job := loop.next_job()) is not None and not job.repeat:
            state, reason = backend.begin(job)
            loop.on_trial_end(job.trial_id, state=state, reason=reason)
        assert job is not None
        loop.on_trial_end(job.trial_id, state="failed", reason="", started=False)
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
