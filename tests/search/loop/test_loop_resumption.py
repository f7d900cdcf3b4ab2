"""Resumed studies in the search loop: what is missing runs, and nothing twice."""

import dataclasses
from collections.abc import Sequence

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.searchers.problem import Observation
from platform.searchers.sweep import Sweep
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.search.loop.backend import (
    LAYOUTS,
    Backend,
    Make,
    TimeOut,
    candidates,
    history_of,
    result,
)
from trainers.records.job import Job
from trainers.records.journal import Peak, Resume, RungStart
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout


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
        loop.on_trial_end(job.trial_id, state=state, reason=reason)
        again = loop.next_job()
        assert again is not None and again.matmul_peak_tflops == 0.5
        resumed = make().next_job()
        assert resumed is not None and resumed.matmul_peak_tflops == 0.5
