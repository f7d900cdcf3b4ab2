"""Gains and costs of FP8 beside bf16, computed from the journal alone."""

import dataclasses
from collections.abc import Sequence

import pytest

from platform.report.json_report import as_json
from platform.report.summary import verdicts
from platform.search.confirmation.confirmation import ConfirmationPlan
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.result.result import StudyResult
from search_spaces.candidate import Candidate
from tests.samples import RECIPE, header, layout, measurement
from trainers.records.job import GateSize
from trainers.records.journal import GateCurves, Measured
from trainers.spec.recipe import Recipe

AT = "2026-01-01T00:00:00+00:00"
FLOAT8 = dataclasses.replace(RECIPE, compute_precision="fp8_tensorwise")
FAST, PLAIN = layout(compile="block"), layout()


def _curves(recipe: Recipe, losses: Sequence[float], *, is_reference: bool = False) -> GateCurves:
    return GateCurves(
        at=AT,
        trial_id="t",
        recipe=recipe,
        layout=PLAIN if is_reference else FAST,
        steps=len(losses),
        sequences=8,
        losses=tuple(losses),
        grad_norms=(1.0,) * len(losses),
        is_reference=is_reference,
    )


def _history(
    *gates: GateCurves, speed: float = 50000.0, runs: int = 0, recipes: tuple[Recipe, ...] = (RECIPE, FLOAT8)
) -> History:
    measured = [
        measurement(on=FAST, tokens_per_s=tokens_per_s, recipe=recipe, repeat=repeat)
        for recipe, tokens_per_s in ((RECIPE, 40000.0), (FLOAT8, speed))
        for repeat in range(runs + 1)
    ]
    of_study = [Measured(at=AT, measurement=point) for point in measured if point.recipe in recipes]
    return History([header(at=AT, recipes=recipes), *of_study, *gates])


def _sentences(history: History) -> str:
    return " ".join(verdicts(StudyResult.of(history)))


def test_each_precision_has_its_winner_and_the_price_names_speed_and_loss() -> None:
    gates = _curves(RECIPE, (10.0, 8.0)), _curves(FLOAT8, (10.1, 8.16))
    history = _history(*gates)
    result = StudyResult.of(history)
    assert [recipe_result.winner and recipe_result.winner.tokens_per_s for recipe_result in result.of_study] == [
        40000.0,
        50000.0,
    ]
    assert result.float8_price(result.of_study[0]) is None
    price = result.float8_price(result.of_study[1])
    assert price is not None and price.speed_ratio == pytest.approx(1.25)
    assert (price.mean_loss_change, price.last_loss_change) == (pytest.approx(0.015), pytest.approx(0.02))
    output = _sentences(history)
    assert "fp8_tensorwise beside bf16: 1.25 times bf16's tokens/s, which is not resolved" in output
    assert " by paired runs; over the numerics gate's 2 steps of 8" in output
    assert "+1.5 % in the mean and +2 % at the last step" in output
    assert "bf16: embedding, norms, attention, head" in output
    assert as_json(result)["recipes"][1]["float8_price"]["speed_ratio"] == pytest.approx(1.25)
    assert as_json(result)["recipes"][0]["float8_price"] is None


def test_where_fp8_is_slower_the_answer_says_so() -> None:
    output = _sentences(_history(speed=20000.0, runs=2))
    assert "fp8_tensorwise beside bf16: slower, 0.5 times bf16's tokens/s (95 % interval 0.5 to 0.5)" in output
    assert "0.5 times bf16's tokens/s, which is not resolved" in _sentences(_history(speed=20000.0, runs=1))


def test_a_winner_without_curves_is_compared_by_its_reference_and_what_is_not_known_is_said() -> None:
    of_reference = _curves(RECIPE, (10.0, 8.0), is_reference=True)
    assert "+0 % in the mean" in _sentences(_history(of_reference, _curves(FLOAT8, (10.0, 8.0))))
    other_size = dataclasses.replace(of_reference, sequences=16)
    assert "what it costs in loss is not known" in _sentences(_history(other_size, _curves(FLOAT8, (10.0, 8.0))))
    assert "bf16 was not searched beside it" in _sentences(_history(recipes=(FLOAT8,)))


@pytest.mark.parametrize(("recipes", "expected"), [((RECIPE,), False), ((RECIPE, FLOAT8), True)])
def test_the_plainest_winner_has_its_curves_taken_where_a_price_is_read_from_them(
    recipes: tuple[Recipe, ...], expected: bool
) -> None:
    candidates = [Candidate(recipe=recipe, layout=PLAIN, micro_batches=(1,)) for recipe in recipes]
    rules = ConfirmationRules(gate=GateSize(steps=2, sequences=8), repeats=0)
    history = History(
        [header(at=AT, recipes=recipes), Measured(at=AT, measurement=measurement(on=PLAIN, recipe=RECIPE))]
    )
    trial = ConfirmationPlan(candidates, rules).at(history).next()
    assert (trial is not None and trial.gate is not None) == expected
