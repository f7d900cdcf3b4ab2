"""Learning-rate schedules, phases, and plans that are invalid."""

import dataclasses

import pytest

from tests.samples import layout
from tests.training.values import RECIPE
from trainers.records.training import LearningRateSchedule, TrainingPhase, TrainingPlan, Validation
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json, to_json

ONE = TrainingPhase(end_tokens=1000, layout=layout(), batch=BatchPoint(micro_batch=1, grad_accum=1))
PLAN = TrainingPlan(
    recipe=RECIPE,
    phases=(ONE,),
    lr_schedule=LearningRateSchedule(kind="constant", tokens=1000),
    validation=Validation(sequences=0, every_tokens=1),
)


def test_the_warm_up_is_linear_in_tokens():
    schedule = LearningRateSchedule(kind="constant", tokens=1000, warmup_tokens=100)
    assert [schedule.share_at(tokens) for tokens in (1, 50, 100, 999)] == [0.01, 0.5, 1.0, 1.0]


def test_cosine_falls_to_its_final_share():
    schedule = LearningRateSchedule(kind="cosine", tokens=1100, warmup_tokens=100, final_share=0.1)
    assert schedule.share_at(100) == 1.0
    assert schedule.share_at(600) == pytest.approx(0.55)
    assert schedule.share_at(1100) == schedule.share_at(2000) == pytest.approx(0.1)


def test_wsd_is_stable_and_then_falls_linearly():
    schedule = LearningRateSchedule(kind="wsd", tokens=1000, warmup_tokens=100, decay_tokens=200)
    assert [schedule.share_at(tokens) for tokens in (100, 800, 900, 1000)] == [1.0, 1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"warmup_tokens": 600, "decay_tokens": 500}, "exceed the"),
        ({"final_share": 1.5}, "final_share must lie in"),
        ({"tokens": 0}, "at least 1 token"),
        ({"warmup_tokens": -1}, "warmup_tokens must be at least 0"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(fields: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        LearningRateSchedule(**{"kind": "wsd", "tokens": 1000, **fields})  # type: ignore[reportArgumentType]


def test_a_phase_ends_with_the_step_that_reaches_its_tokens():
    other = dataclasses.replace(ONE, end_tokens=400)
    plan = dataclasses.replace(PLAN, phases=(other, ONE))
    assert [plan.phase_at(tokens) for tokens in (0, 399, 400, 999, 1000)] == [other, other, ONE, ONE, None]


def test_the_last_phase_ends_with_the_training():
    with pytest.raises(ValueError, match="the last phase ends with the training"):
        dataclasses.replace(PLAN, lr_schedule=LearningRateSchedule(kind="constant", tokens=999))


def test_a_plan_travels_as_json():
    assert from_json(TrainingPlan, to_json(PLAN)) == PLAN
