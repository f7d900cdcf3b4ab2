"""Timing of a pipeline at two accumulations, whose slope gives time, memory and bubble at the recipe's accumulation."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainers.measuring.figures import Shorter, TimedWindow
from trainers.measuring.ladder import extrapolated
from trainers.measuring.rung import timed_accums
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

SLOT_S, OPTIMIZER_S = 0.3, 0.2
SPEC = ModelSpec(name="tiny", architecture="bloom", num_layers=8, hidden_size=32, num_heads=4, vocab_size=96)
RECIPE = Recipe(model=SPEC, seq_len=32, global_batch=64, seed=0)
INTERLEAVED = Layout(engine="ddp", pp=4, schedule="interleaved", virtual=2)


def schedule_s(micro_steps: int, pp: int, virtual: int = 1) -> float:
    """Returns the seconds of a schedule with equally long stages (arXiv 2104.04473, section 2.2)."""
    return SLOT_S * (micro_steps + (pp - 1) / virtual)


def window(pp: int, virtual: int, shorter: int, accum: int) -> TimedWindow:
    return TimedWindow(
        total_s=schedule_s(accum, pp, virtual) + OPTIMIZER_S,
        first_micro_s=None,
        middle_micro_s=None,
        last_micro_s=None,
        optimizer_s=OPTIMIZER_S,
        schedule_s=schedule_s(accum, pp, virtual),
        shorter=Shorter(
            accum=shorter,
            total_s=schedule_s(shorter, pp, virtual) + OPTIMIZER_S,
            schedule_s=schedule_s(shorter, pp, virtual),
        ),
    )


def measurement(layout: Layout, grad_accum: int, **fields: Any) -> Measurement:
    batch = BatchPoint(micro_batch=1, grad_accum=grad_accum)
    return Measurement(recipe=RECIPE, layout=layout, batch=batch, outcome=Outcome.OK, **fields)


@pytest.mark.parametrize(
    ("grad_accum", "pp", "expected"), [(4, 4, (4,)), (8, 4, (8,)), (12, 4, (8, 12)), (64, 4, (8, 16)), (64, 2, (4, 8))]
)
def test_two_accumulations_of_at_least_twice_the_stages_are_timed_where_the_recipe_has_as_many(
    grad_accum: int, pp: int, expected: tuple[int, ...]
) -> None:
    engine = cast(Any, SimpleNamespace(marks_micro_steps=False))
    layout, batch = Layout(engine="ddp", pp=pp), BatchPoint(micro_batch=1, grad_accum=grad_accum)
    assert timed_accums(engine, layout, batch) == expected
    assert timed_accums(engine, layout, batch, all_micro_steps=True) == (*expected[:-1], grad_accum)


def test_whole_steps_have_all_micro_steps() -> None:
    engine = cast(Any, SimpleNamespace(marks_micro_steps=True))
    for grad_accum in (1, 256):
        batch = BatchPoint(micro_batch=1, grad_accum=grad_accum)
        assert timed_accums(engine, Layout(engine="ddp"), batch, all_micro_steps=True) == (grad_accum,)


@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (4, 1), (4, 2)])
def test_the_slope_gives_the_step_and_the_bubble_at_the_recipe_s_accumulation(pp: int, virtual: int) -> None:
    batch = BatchPoint(micro_batch=1, grad_accum=64)
    timed = window(pp, virtual, 2 * pp, 4 * pp)
    assert timed.full_s(batch, 4 * pp) == pytest.approx(schedule_s(64, pp, virtual) + OPTIMIZER_S)
    layout = Layout(engine="ddp", pp=pp, schedule="interleaved" if virtual > 1 else "1f1b", virtual=virtual)
    by_formula = measurement(layout, 64).pipeline_bubble_by_formula
    assert by_formula == pytest.approx((pp - 1) / (virtual * 64 + pp - 1))
    assert timed.bubble(batch, 4 * pp) == pytest.approx(by_formula)
    assert dataclasses.replace(timed, shorter=None).bubble(BatchPoint(micro_batch=1, grad_accum=4 * pp), 4 * pp) is None


def test_a_step_of_few_micro_batches_is_timed_whole() -> None:
    for grad_accum in (4, 8):
        batch = BatchPoint(micro_batch=1, grad_accum=grad_accum)
        timed = dataclasses.replace(window(4, 1, 1, grad_accum), shorter=None)
        assert timed.full_s(batch, grad_accum) == schedule_s(grad_accum, 4) + OPTIMIZER_S
        assert timed.bubble(batch, grad_accum) is None


def test_memory_grows_along_the_line_of_both_accumulations_and_never_shrinks() -> None:
    assert extrapolated((8, 3.0), (16, 4.0), 64) == pytest.approx(10.0)
    assert extrapolated((8, 4.0), (16, 4.0), 64) == extrapolated((8, 5.0), (16, 4.0), 64) == 4.0


def test_the_rank_with_most_memory_is_named_with_its_stages() -> None:
    assert measurement(INTERLEAVED, 8, memory_rank=1).memory_stages == (1, 5)
    assert measurement(Layout(engine="ddp", pp=2, dp_replicate=2), 8, memory_rank=3).memory_stages == (1,)
    assert measurement(Layout(engine="ddp", dp_replicate=4), 8, memory_rank=3).memory_stages == ()
