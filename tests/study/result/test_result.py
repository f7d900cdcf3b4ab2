"""A study's result, computed at once from its history."""

import pytest

from platform.study.history import History
from platform.study.result.result import StudyResult
from tests.samples import RECIPE, header, layout, measurement, profile, skipped
from tests.search.loop.backend import OTHER
from trainers.records.journal import End, GateCurves, Line, Measured
from trainers.records.measurement import Measurement

AT = "2026-01-01T00:00:00+00:00"
FAST, PLAIN = layout(checkpointing="full"), layout()
BEST = measurement(on=FAST, tokens_per_s=50000.0)


def result_of(*measurements: Measurement, lines: tuple[Line, ...] = ()) -> StudyResult:
    first = header(at=AT, recipes=(RECIPE, OTHER))
    return StudyResult.of(History([first, *(Measured(at=AT, measurement=point) for point in measurements), *lines]))


def curves(on_reference: bool, loss: float) -> GateCurves:
    return GateCurves(
        at=AT,
        trial_id="t9",
        recipe=RECIPE,
        layout=PLAIN if on_reference else FAST,
        steps=2,
        sequences=4,
        losses=(2.0, loss),
        grad_norms=(1.0, 1.0),
        is_reference=on_reference,
    )


def test_each_recipe_has_its_ranking_and_its_winner() -> None:
    other = measurement(on=PLAIN, recipe=OTHER, tokens_per_s=90000.0)
    result = result_of(measurement(on=PLAIN), BEST, other)
    assert list(result.by_id) == [RECIPE.id, OTHER.id] and result.is_resolved and result.has_leader
    first = result.by_id[RECIPE.id]
    assert [point.main_run.layout for point in first.ranking] == [FAST, PLAIN]
    assert first.winner == BEST and result.by_id[OTHER.id].winner == other
    assert (first.gate, first.profile, first.contenders) == (None, None, ())
    (comparison,) = first.comparisons
    assert comparison.other.layout == PLAIN and comparison.resolution == "not resolved"


@pytest.mark.parametrize("loss", [1.0, 1.5])
def test_the_winner_s_gate_and_profile_belong_to_it(loss: float) -> None:
    lines = (curves(False, 1.0), curves(True, loss), profile(BEST, at=AT), profile(measurement(on=PLAIN), at=AT))
    judged = result_of(BEST, measurement(on=PLAIN), lines=lines).by_id[RECIPE.id]
    assert judged.gate is not None and judged.gate.passed == (loss == 1.0)
    assert judged.profile is not None and judged.profile.layout == FAST


def test_an_order_that_a_disturbed_machine_leaves_open_names_a_leader_and_no_winner() -> None:
    """Checks a winner that is half as fast in its run as in the search, beside a point 3 % below it in the search."""
    again = measurement(on=FAST, tokens_per_s=24000.0, repeat=1)
    other = measurement(recipe=OTHER, tokens_per_s=10.0)
    result = result_of(BEST, again, measurement(on=PLAIN, tokens_per_s=48500.0), other, lines=(profile(BEST, at=AT),))
    judged = result.by_id[RECIPE.id]
    assert (
        judged.leader is not None and judged.winner is None and judged.profile is None and len(judged.unresolved) == 2
    )
    assert not result.is_resolved and result.has_leader
    assert [recipe_result.recipe for recipe_result, _ in result.winners] == [OTHER], "each recipe has its own"


@pytest.mark.parametrize("tried_all", [True, False])
def test_what_was_skipped_beforehand_is_judged_only_where_nothing_was_left_to_try(tried_all: bool) -> None:
    end = End(at=AT, exit_code=1, wall_s=1, gpu_s=0, tried_all=tried_all)
    result = result_of(skipped(), lines=(end,))
    assert len(result.by_id[RECIPE.id].judged) == tried_all and not result.has_leader
