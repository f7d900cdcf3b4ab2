"""The search loop, one step at a time: a fake backend plays the trials, the study and its journal are real."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.journal import Tail
from platform.study.result.result import StudyResult
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.search.loop.backend import (
    ALL_RUNGS,
    CONFIRM,
    LAYOUTS,
    OTHER,
    RECIPE,
    Backend,
    Make,
    candidates,
    history_of,
    result,
)
from trainers.records.job import GateSize, Job
from trainers.records.journal import TrialEnd
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint

ROOT = Path(__file__).parents[3]


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
        assert job is not None and list(loop.running) == [job.trial_id]
        assert not history_of(study).finished
        state, reason = backend.begin(job)
        loop.on_trial_end(job.trial_id, state=state, reason=reason)
        assert not loop.running
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
