"""Every engine, stage and degree has the reference's weights, logits, losses and norms; every fault shows."""

import dataclasses

import pytest

from tests.contract.cases import BLOOM, Case, cases, recipe
from tests.contract.covering import Groups, covering, parameters
from tests.contract.group import run_cases
from tests.contract.reference import differences, reference

pytestmark = pytest.mark.contract

CASES = [
    # Both cases of PowerSGD are compared with each other.
    dataclasses.replace(case, heavy=case.heavy and not case.recipe.powersgd_rank)
    for world_size in (1, 2, 4)
    for case in covering(cases(world_size))
]
GROUPS = Groups(run_cases, CASES)


@pytest.mark.parametrize("case", parameters(case for case in CASES if not case.fault))
def test_trains_as_the_reference_does(case: Case) -> None:
    result = GROUPS.result(case)
    assert differences(result["run"], case.recipe) == []
    assert len(set(result["digests"])) == 1
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in CASES if case.fault))
def test_a_planted_fault_is_seen(case: Case) -> None:
    assert differences(GROUPS.result(case)["run"], case.recipe) != []


def test_powersgd_is_one_recipe_however_a_batch_is_cut() -> None:
    """Checks that factors depend on the mean gradient alone, and on nothing that an engine before left behind."""
    first, second = (GROUPS.result(case)["run"] for case in CASES if case.recipe.powersgd_rank)
    assert first.losses == pytest.approx(second.losses, rel=1e-5)
    assert first.grad_norms == pytest.approx(second.grad_norms, rel=1e-4)
    exact = reference(recipe(BLOOM))
    assert first.losses[2] != pytest.approx(exact.losses[2], rel=1e-5)
