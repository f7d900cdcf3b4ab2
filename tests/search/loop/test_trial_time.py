"""Whether the search goes on where little of a budget is left: a trial is as long as the steps of its own batch."""

import dataclasses

import pytest

from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import measurement
from tests.search.loop.backend import LAYOUTS, RECIPE, Backend, Make
from trainers.records.job import Job, Timing
from trainers.records.journal import Resume
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint
from trainers.spec.recipe import Recipe

WHOLE = Timing(whole_steps=True)
RECIPES = {size: dataclasses.replace(RECIPE, global_batch=size) for size in (2, 32, 512)}
SEQUENCE_S = 0.0715
"""Seconds of a sequence: a step of BLOOM-7b1 with a batch of 512 took 36.6 s on two GPUs."""


def candidate(recipe: Recipe, *micro_batches: int, place: int = 0) -> Candidate:
    return Candidate(recipe=recipe, layout=LAYOUTS[place], micro_batches=micro_batches or (1,))


@pytest.fixture
def timed(backend: Backend) -> Backend:
    """Returns the backend whose rungs take the time of their steps; a trial starts in 38 s."""

    def play(job: Job, batch: BatchPoint) -> Measurement:
        begins = min(batch.grad_accum, 3)
        accum = batch.grad_accum if job.timing.whole_steps else begins
        short_s, step_s = (SEQUENCE_S * n * batch.micro_batch * job.layout.data_parallel for n in (begins, accum))
        number = max(4, job.timing.steps or 0, int(job.timing.filled_s / step_s))
        times_s = (short_s, short_s, *(step_s,) * number)
        backend.rung_s = sum(times_s)
        return measurement(
            recipe=job.recipe,
            on=job.layout,
            micro_batch=batch.micro_batch,
            trial_id=job.trial_id,
            measured_grad_accum=accum,
            step_time_s=SEQUENCE_S * batch.global_batch(job.layout),
            last_micro_step_s=short_s / begins,
            step_times_s=times_s,
        )

    backend.play, backend.start_s = play, 38.0
    return backend


def batches(backend: Backend) -> list[int]:
    return [job.recipe.global_batch for job in backend.jobs]


def test_whole_steps_of_small_batches_run_in_the_time_that_a_large_one_left(make: Make, timed: Backend) -> None:
    """Checks the case seen on two H100: 512 sequences took 185 of 330 s, 32 take 47 s and two 42 s."""
    loop = make([candidate(RECIPES[size]) for size in (512, 32, 2)], timing=WHOLE, time_s=330.0)
    timed.run(loop)
    assert batches(timed) == [512, 32, 2] and loop.tried_all


def test_whole_steps_of_a_batch_as_large_do_not_begin_in_time_for_a_small_one_alone(make: Make, timed: Backend) -> None:
    order = [candidate(RECIPES[512]), candidate(RECIPES[2]), candidate(RECIPES[512], place=1)]
    loop = make(order, timing=WHOLE, time_s=330.0)
    timed.run(loop)
    assert batches(timed) == [512, 2] and "too short for a trial" in loop.ended_reason


@pytest.mark.parametrize("searcher", ["sweep", "guided"])
def test_a_trial_too_long_for_what_is_left_is_passed_over_for_shorter_ones(
    make: Make, timed: Backend, study: Study, searcher: str
) -> None:
    order = [candidate(RECIPES[size], place=place) for place in range(3) for size in (512, 2)]
    loop = make(order, timing=WHOLE, searcher=searcher, time_s=340.0)
    timed.run(loop)
    assert batches(timed) == [512, 2, 2, 2] and not loop.tried_all
    assert loop.ended_reason == "the 28 s that are left of the budget are too short for a trial"
    study.record(Resume())
    resumed = make(order, timing=WHOLE, searcher=searcher, time_s=500.0)
    timed.run(resumed)
    assert batches(timed)[4:] == [512, 512] and resumed.tried_all


def test_no_trial_is_passed_over_where_time_is_left_for_none(make: Make, timed: Backend) -> None:
    order = [candidate(RECIPES[size], place=place) for place in range(2) for size in (512, 2)]
    loop = make(order, timing=WHOLE, time_s=185.3 + 20.0)
    timed.run(loop)
    assert batches(timed) == [512] and "too short for a trial" in loop.ended_reason


def test_a_profile_runs_in_less_time_than_whole_steps_take(make: Make, timed: Backend) -> None:
    """Checks a budget with 60 s for a profile after the only trial, of 185 s."""
    loop = make([candidate(RECIPES[512])], timing=WHOLE, rules=ConfirmationRules(repeats=0, profile=True), time_s=245.0)
    timed.run(loop)
    assert [bool(job.profile) for job in timed.jobs] == [False, True]


def test_a_time_is_never_scaled_up(make: Make, timed: Backend) -> None:
    loop = make([candidate(RECIPES[2]), candidate(RECIPES[512])], timing=WHOLE, time_s=100.0)
    timed.run(loop)
    assert batches(timed) == [2, 512], "58 s are left, and nothing is known of large steps"


def test_windows_are_filled_by_however_short_steps(make: Make, timed: Backend) -> None:
    order = [candidate(RECIPES[512]), candidate(RECIPES[2])]
    loop = make(order, timing=WHOLE, time_s=185.3 + 41.0)
    timed.run(loop)
    assert batches(timed) == [512], "38 s to start, 4 s of windows"


def test_a_stated_number_of_steps_is_as_long_as_the_tokens_that_are_timed(make: Make, timed: Backend) -> None:
    """Checks a ladder that ends with steps of three micro-steps of 16 sequences, before one of a single sequence."""
    order = [candidate(RECIPES[512], 16), candidate(RECIPES[2])]
    loop = make(order, timing=Timing(steps=50), time_s=450.0)
    timed.run(loop)
    assert batches(timed) == [512, 2] and loop.tried_all


def test_rungs_that_fill_their_time_take_as_long_whatever_the_batch(make: Make, timed: Backend) -> None:
    loop = make([candidate(RECIPES[512], 16), candidate(RECIPES[2])], timing=Timing(), time_s=125.0)
    timed.run(loop)
    assert batches(timed) == [512], "the first took 65 s, and so would the next"
