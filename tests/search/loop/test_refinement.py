# pyright: reportPrivateUsage=false
"""Refinement between the last rung that ran and the first that memory refuses: every micro-batch that divides is
tried.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from platform.search.loop.exploration import Exploration
from platform.search.loop.loop import SearchLoop
from platform.searchers.problem import Problem
from platform.searchers.sweep import Sweep
from platform.study.result.ranking import winner
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import skipped
from tests.search.loop.backend import LAYOUTS, RECIPE, Backend, Make, fast, history_of, out_of_memory, outcomes
from trainers.records.job import Job
from trainers.records.journal import Measured, Resume
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

WIDE = dataclasses.replace(RECIPE, global_batch=2 * 1680)
WITHIN = (Candidate(recipe=WIDE, layout=LAYOUTS[0], micro_batches=(4, 8, 16)),)


def up_to(largest: int) -> Callable[[Job, BatchPoint], Measurement]:
    return lambda job, batch: fast(job, batch) if batch.micro_batch <= largest else out_of_memory(job, batch)


def thrashing(job: Job, batch: BatchPoint) -> Measurement:
    return dataclasses.replace(fast(job, batch), outcome=Outcome.THRASH, reason="3 allocator retries")


@pytest.mark.parametrize("refused", [out_of_memory, thrashing])
def test_seven_is_found_between_four_and_eight(
    make: Make, backend: Backend, study: Study, refused: Callable[[Job, BatchPoint], Measurement]
) -> None:
    backend.play = lambda job, batch: fast(job, batch) if batch.micro_batch <= 7 else refused(job, batch)
    backend.run(make(WITHIN))
    assert backend.order == [(LAYOUTS[0], (4, 8, 16)), (LAYOUTS[0], (5, 6, 7))]
    best = winner(history_of(study).measurements)
    assert best is not None and best.batch.micro_batch == 7
    backend.run(make(WITHIN))
    assert len(backend.jobs) == 2, "a resumed study runs none of it again"


def test_it_ends_at_the_first_that_does_not_fit(make: Make, backend: Backend, study: Study) -> None:
    backend.play = up_to(5)
    backend.run(make(WITHIN))
    assert outcomes(study) == [(4, Outcome.OK), (8, Outcome.OOM), (5, Outcome.OK), (6, Outcome.OOM)]


def test_a_killed_refinement_goes_on(make: Make, backend: Backend, study: Study) -> None:
    backend.play = up_to(7)
    loop = make(WITHIN)
    backend.step(loop)
    job = loop.next_job()
    assert job is not None
    backend.begin(dataclasses.replace(job, rungs=job.rungs[:1]))
    study.record(Resume())
    backend.run(make(WITHIN))
    assert backend.order[2:] == [(LAYOUTS[0], (6, 7))]


def test_a_prediction_of_the_trial_s_counts_as_a_refusal(make: Make, backend: Backend) -> None:
    def play(job: Job, batch: BatchPoint) -> Measurement:
        skipped = dataclasses.replace(out_of_memory(job, batch), outcome=Outcome.SKIPPED)
        return fast(job, batch) if batch.micro_batch < 8 else skipped

    backend.play = play
    backend.run(make(WITHIN))
    assert backend.order[1:] == [(LAYOUTS[0], (5, 6, 7))]


def test_the_guided_search_refines_the_best_layout_alone(make: Make, backend: Backend, study: Study) -> None:
    backend.play = up_to(7)
    within = tuple(Candidate(recipe=WIDE, layout=layout, micro_batches=(4, 8, 16)) for layout in LAYOUTS)
    backend.run(make(within, searcher="guided"))
    ladders, refined = backend.order[:-1], backend.order[-1]
    assert refined == (LAYOUTS[0], (5, 6, 7)), "the fastest"
    assert {layout for layout, _ in ladders} == set(LAYOUTS) and not {5, 6, 7} & {
        r for _, rungs in ladders for r in rungs
    }


def test_named_rungs_are_not_refined(make: Make, backend: Backend) -> None:
    backend.play = up_to(7)
    backend.run(make(tuple(dataclasses.replace(candidate, refine=False) for candidate in WITHIN)))
    assert len(backend.jobs) == 1


@pytest.mark.parametrize("searcher", ["sweep", "guided"])
def test_a_rung_that_cannot_fit_by_its_lower_bound_counts_as_a_refusal_and_is_not_run(
    make: Make, backend: Backend, study: Study, searcher: str
) -> None:
    """Checks a rung that the plan has taken off the ladder, with the reason in the journal."""
    study.record(Measured(measurement=skipped(recipe=WIDE, on=LAYOUTS[0], micro_batch=8)))
    backend.play = up_to(7)
    backend.run(make((dataclasses.replace(WITHIN[0], micro_batches=(2, 4)),), searcher=searcher))
    assert backend.order[-1] == (LAYOUTS[0], (5, 6, 7))
    assert not any(batch.micro_batch == 8 for job in backend.jobs for batch in job.rungs)


STEPS = (2, 4, 8, 16)


class Cautious(Sweep[Candidate]):
    """Suggests the rungs below 8, and holds the others back."""

    def suggest(self, running: Sequence[Candidate] = ()) -> Candidate | None:
        suggestion = super().suggest(running)
        return suggestion and dataclasses.replace(
            suggestion, micro_batches=tuple(r for r in suggestion.micro_batches if r < 8)
        )

    def update(self, candidate: Candidate, measurements: Sequence[Any]) -> None:
        super().update(dataclasses.replace(candidate, micro_batches=STEPS), measurements)

    def deferred(self, candidate: Candidate) -> tuple[int, ...]:
        return tuple(rung for rung in candidate.micro_batches if rung >= 8)

    def overhear(self, candidate: Candidate, measurements: Sequence[Any]) -> None:
        """Learns nothing from other searches."""


def cautious(loop: SearchLoop, within: Sequence[Candidate]) -> SearchLoop:
    loop._search = Exploration(Cautious(Problem(candidates=within)), within, loop._log, loop.settings)
    return loop


def growing(gib_each: float) -> Callable[[Job, BatchPoint], Measurement]:
    """Returns ladders whose peaks lie on a line. A device has 2 GiB."""

    def play(job: Job, batch: BatchPoint) -> Measurement:
        peak = 0.5 + gib_each * batch.micro_batch
        figures: dict[str, Any] = {"peak_forward_backward_gib": peak, "peak_optimizer_gib": 0.25}
        ran = dataclasses.replace(fast(job, batch), peak_allocated_gib=peak, **figures)
        return ran if peak < 2 else out_of_memory(job, batch)

    return play


def test_a_rung_held_back_is_skipped_by_its_layout_s_own_line_and_what_lies_below_it_is_tried(
    make: Make, backend: Backend, study: Study
) -> None:
    backend.play = growing(0.2)  # 1.9 GiB at 7; 2.1 at 8
    within = (dataclasses.replace(WITHIN[0], micro_batches=STEPS),)
    backend.run(cautious(make(within), within))
    assert backend.order == [(LAYOUTS[0], (2, 4)), (LAYOUTS[0], (5, 6, 7))]
    output = {measurement.batch.micro_batch: measurement for measurement in history_of(study).measurements}
    assert [output[rung].outcome for rung in (8, 16)] == [Outcome.SKIPPED] * 2
    assert output[8].reason == "predicted 2.10 GiB from smaller micro-batches; 1.94 GiB may be used"
    best = winner(history_of(study).measurements)
    assert best is not None and best.batch.micro_batch == 7
    backend.run(cautious(make(within), within))
    assert len(backend.jobs) == 2, "a resumed study says and runs none of it again"


def test_a_rung_held_back_is_run_where_its_layout_s_own_line_says_that_it_fits(
    make: Make, backend: Backend, study: Study
) -> None:
    backend.play = growing(0.15)  # 1.7 GiB at 8, 2.9 at 16
    within = (dataclasses.replace(WITHIN[0], micro_batches=STEPS),)
    backend.run(cautious(make(within), within))
    assert backend.order[1] == (LAYOUTS[0], (8,))
    assert dict(outcomes(study))[16] is Outcome.SKIPPED


class Modest(Cautious):
    """Suggests the rungs below 8, and holds none back: it thinks the others not worth their time."""

    def deferred(self, candidate: Candidate) -> tuple[int, ...]:
        return ()


def test_a_best_rung_at_the_end_of_its_ladder_is_followed_by_the_next_one(make: Make, backend: Backend) -> None:
    backend.play = growing(0.15)  # 1.7 GiB at 8, 2.9 at 16
    within = (dataclasses.replace(WITHIN[0], micro_batches=STEPS, refine=False),)
    loop = make(within)
    loop._search = Exploration(Modest(Problem(candidates=within)), within, loop._log, loop.settings)
    backend.run(loop)
    assert backend.order == [(LAYOUTS[0], (2, 4)), (LAYOUTS[0], (8,))]
