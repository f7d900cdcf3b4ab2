"""Curves read off records, and trainings compared at equal tokens, equal time and equal loss; from made-up records."""

import dataclasses
import math
from typing import Any

import pytest

from platform.train.converging.conclusion import answer
from platform.train.converging.curves import Curves, curves_of, loss_at, reached_at
from platform.train.converging.rates import Rate
from platform.train.converging.verdict import best_by_time, compare, mean_curve, sentences
from trainers.records.training import Record, Steps, Validated

STEP = 64


def records(*, step_s: float, tokens_scale: float = 1.0, floor: float = 2.0, steps: int = 40) -> list[Record]:
    """Returns the records of a training whose held-out loss falls from 5 towards `floor`, exponentially, with a scale
    of `tokens_scale` times the tokens of ten steps.
    """

    def loss(tokens: float) -> float:
        return floor + (5.0 - floor) * math.exp(-tokens / (tokens_scale * 10 * STEP))

    all_records: list[Record] = [Validated(attempt=1, step=0, tokens=0, loss=5.0, train_s=0.0, wall_s=0.1)]
    for first in range(1, steps + 1, 4):
        common: dict[str, Any] = {"attempt": 1, "tokens_per_step": STEP, "data_s": 0.0, "peak_gib": 1.0}
        last = first + 3
        all_records.append(
            Steps(first_step=first, losses=tuple(loss((first + i) * STEP) for i in range(4)), grad_norms=(1.0,) * 4,
                  learning_rates=(0.1,) * 4, tokens=last * STEP, train_s=last * step_s, steps_s=4 * step_s, **common)
        )  # fmt: skip
        all_records.append(Validated(attempt=1, step=last, tokens=last * STEP, loss=loss(last * STEP),
                               train_s=last * step_s, wall_s=0.1))  # fmt: skip
    return all_records


def curves(**fields: Any) -> Curves:
    return curves_of(records(**fields))


def test_each_step_has_its_tokens_and_hours():
    curve = curves(step_s=36.0)
    assert curve.tokens[:3] == (64.0, 128.0, 192.0) and len(curve.tokens) == 40
    assert curve.hours[:2] == pytest.approx((0.01, 0.02)) and curve.hours[-1] == pytest.approx(0.4)
    assert curve.val_tokens[:2] == (0.0, 256.0) and curve.val_hours[1] == pytest.approx(0.04)
    assert curve.tokens_per_s == pytest.approx(64 / 36) and curve.has_learned


@pytest.mark.parametrize(("x", "loss"), [(0.0, 4.0), (0.5, 3.5), (1.0, 3.0), (2.0, 1.0), (2.5, None), (-1.0, None)])
def test_a_loss_is_read_between_its_neighbours(x: float, loss: float | None):
    assert loss_at((0.0, 1.0, 2.0), (4.0, 3.0, 1.0), x) == loss


@pytest.mark.parametrize(("target", "x"), [(4.0, 0.0), (3.5, 0.5), (2.0, 1.5), (0.5, None)])
def test_a_loss_is_reached_at_its_first_crossing(target: float, x: float | None):
    assert reached_at((0.0, 1.0, 2.0, 3.0), (4.0, 3.0, 1.0, 2.0), target) == x


def test_one_strategy_alone_is_beside_nothing():
    verdict = compare({"one": {0: curves(step_s=36.0)}}, 40 * STEP)
    assert [line.partition(" ")[0] for line in sentences(verdict)] == ["Held-out", "one:"]
    rates = {"one": Rate(value=0.1, source="the best of 3")}
    assert not [line for line in answer(verdict, rates) if line.startswith(("Beside", "Soonest"))]


def test_a_slower_learner_with_faster_steps_is_sooner_by_what_is_left_of_both():
    verdict = compare(
        {
            "plain": {0: curves(step_s=36.0), 1: curves(step_s=36.0)},
            "fast": {0: curves(step_s=9.0, tokens_scale=1.5), 1: curves(step_s=10.0, tokens_scale=1.5)},
        },
        40 * STEP,
    )
    assert verdict.target_loss == max(
        seed_curves.val_losses[-1] for seed_curves in (curves(step_s=9.0, tokens_scale=1.5),)
    )
    speed = verdict.ratio("fast", lambda mark: mark.tokens_per_s)
    tokens = verdict.ratio("fast", lambda mark: mark.tokens_to_loss)
    hours = verdict.ratio("fast", lambda mark: mark.hours_to_loss)
    assert speed and tokens and hours and speed.interval and hours.interval
    assert speed.middle == pytest.approx(36 / math.sqrt(90))
    assert tokens.middle == pytest.approx(1.5, rel=0.05)
    assert hours.middle == pytest.approx(tokens.middle / speed.middle, rel=1e-6)
    assert hours.interval[0] < hours.middle < hours.interval[1]
    assert best_by_time(verdict) == "fast"
    words = " ".join(sentences(verdict))
    assert (
        "fast: 3.79 times the tokens/s" in words and "times sooner" in words and "95 % intervals over 2 seeds" in words
    )
    assert verdict.spread("plain") == 0.0


def test_one_seed_has_no_interval_and_says_so():
    verdict = compare({"a": {0: curves(step_s=1.0)}, "b": {0: curves(step_s=2.0)}}, 40 * STEP)
    words = " ".join(sentences(verdict))
    assert "one seed, without an interval" in words
    assert "b: 0.50 times the tokens/s, as many tokens to loss" in words and "so 2.00 times later" in words
    assert verdict.spread("a") is None


def test_a_ratio_that_the_seeds_do_not_resolve_is_said_to_be_so():
    first = {0: curves(step_s=1.0), 1: curves(step_s=1.0)}
    open_order = compare({"a": first, "b": {0: curves(step_s=0.5), 1: curves(step_s=1.2)}}, 40 * STEP)
    assert "which the seeds do not resolve." in " ".join(sentences(open_order))
    clear = compare({"a": first, "b": {0: curves(step_s=0.5), 1: curves(step_s=0.5)}}, 40 * STEP)
    assert "do not resolve" not in " ".join(sentences(clear))


def test_equal_time_is_that_of_the_fastest():
    verdict = compare({"slow": {0: curves(step_s=36.0)}, "fast": {0: curves(step_s=18.0)}}, 40 * STEP)
    assert verdict.equal_hours == pytest.approx(0.2)
    slow, fast = (verdict.marks[name][0] for name in ("slow", "fast"))
    assert slow.loss_at_equal_tokens == fast.loss_at_equal_tokens
    assert slow.loss_at_equal_hours and fast.loss_at_equal_hours
    assert slow.loss_at_equal_hours > fast.loss_at_equal_hours


def test_what_did_not_learn_is_left_out_and_sets_no_target():
    diverged = dataclasses.replace(curves(step_s=1.0), losses=(5.0, math.nan))
    verdict = compare({"good": {0: curves(step_s=1.0)}, "bad": {0: diverged}}, 40 * STEP)
    assert list(verdict.marks) == ["good"] and "bad is left out: it did not learn" in sentences(verdict)[0]
    none = compare({"bad": {0: diverged}}, 40 * STEP)
    assert sentences(none)[-1] == "There is nothing to compare." and best_by_time(none) is None


def test_the_mean_over_seeds_stands_where_all_have_points():
    xs, ys = mean_curve([((0.0, 1.0, 2.0), (4.0, 3.0, 2.0)), ((0.0, 1.5), (2.0, 0.5))])
    assert xs == [0.0, 1.0] and ys == [3.0, 2.0]
