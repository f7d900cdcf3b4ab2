"""Points that ran without head-room, run again with their allocator held: a fake backend plays the trials."""

import pytest

from platform.search.confirmation.held_runs import held_gib, may_be_held
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.result.ranking import winner
from platform.study.study import Study
from tests.samples import measurement
from tests.search.loop.backend import LAYOUTS, Backend, Make, fast, history_of, out_of_memory, result
from trainers.records.job import Job
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

FULL = {"peak_allocated_gib": 1.7, "peak_reserved_gib": 1.9, "peak_device_gib": 1.98}
"""Memory of a point on a device of 2 GiB: its tensors leave head-room, its allocator does not."""


def play(job: Job, batch: BatchPoint) -> Measurement:
    """Plays a largest micro-batch of the first layout that reserves nearly all memory, unless it is held."""
    if (job.layout, batch.micro_batch) != (LAYOUTS[0], 4):
        return fast(job, batch)
    if job.held_gib is None:
        return result(job, batch, 9000.0, outcome=Outcome.THRASH, reason="no head-room is left", **FULL)
    assert job.held_gib == pytest.approx(0.97 * 2.0 - 0.08) and job.repeat
    return result(job, batch, 8900.0)


@pytest.mark.parametrize("repeats", [0, 2])
def test_a_point_that_holds_its_speed_with_less_memory_wins(
    make: Make, backend: Backend, study: Study, repeats: int
) -> None:
    backend.play = play
    backend.run(make(rules=ConfirmationRules(repeats=repeats)))
    best = winner(history_of(study).measurements)
    assert best is not None and (best.layout, best.batch.micro_batch) == (LAYOUTS[0], 4)
    held, *others = [job for job in backend.jobs if job.repeat]
    assert held.held_gib and held.timing.rung_s == held.timing.winner_s, "as long as a winner's windows"
    runs = [job for job in backend.jobs if job.repeat and (job.layout, job.rungs[0].micro_batch) == (LAYOUTS[0], 4)]
    assert all(job.held_gib for job in runs) and len(runs) == (repeats + 1 if repeats else 1)
    assert not any(job.held_gib for job in others if job not in runs)


def test_one_that_needs_the_memory_is_tried_once_and_does_not_win(make: Make, backend: Backend, study: Study) -> None:
    backend.play = lambda job, batch: out_of_memory(job, batch) if job.held_gib else play(job, batch)
    backend.run(make(rules=ConfirmationRules(repeats=1)))
    best = winner(history_of(study).measurements)
    assert best is not None and best.layout == LAYOUTS[1]
    assert sum(job.held_gib is not None for job in backend.jobs) == 1


def test_what_retried_or_fills_the_memory_by_its_tensors_is_not_held() -> None:
    thrash = measurement(outcome=Outcome.THRASH, **FULL)  # type: ignore[reportArgumentType]
    assert may_be_held(thrash) and held_gib(thrash, 2.0) == pytest.approx(1.86)
    assert not may_be_held(measurement(**FULL))  # type: ignore[reportArgumentType]
    for fields in ({"alloc_retries": 1}, {"peak_allocated_gib": 1.89}, {"peak_allocated_gib": None}):
        other = measurement(outcome=Outcome.THRASH, **{**FULL, **fields})  # type: ignore[reportArgumentType]
        assert not may_be_held(other) and held_gib(other, 2.0) is None
