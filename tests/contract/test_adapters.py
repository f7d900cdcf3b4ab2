"""Adapters have the gradients of merged weights in one process, on every engine and degree that has them."""

import functools

import pytest

from tests.contract.adapters import CASES, FAULTS, IN_HALF, ON_FOUR, differences, merged, run
from tests.contract.covering import Groups, covering, parameters
from tests.contract.group import run_group
from tests.contract.mesh_cases import MeshCase

pytestmark = pytest.mark.contract

EVERY = covering([*CASES, *IN_HALF, *FAULTS])
GROUPS = Groups(functools.partial(run_group, run), EVERY)
IN_FP32 = [case for case in EVERY if case.recipe.compute_precision == "fp32" and not case.fault]


@pytest.mark.parametrize("case", parameters(IN_FP32))
def test_gradients_are_those_of_merged_weights(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], merged(case), tolerance=4e-6 if case.recipe.is_quantised else 2e-6) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in EVERY if case.recipe.compute_precision == "bf16"))
def test_gradients_over_a_bf16_model_are_close(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], merged(case), tolerance=5e-2) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in EVERY if case.fault))
def test_a_planted_fault_is_seen(case: MeshCase) -> None:
    assert differences(GROUPS.result(case)["trained"], merged(case), tolerance=1e-5) != []


@pytest.mark.heavy
def test_every_family_on_four_ranks_has_the_gradients_of_merged_weights() -> None:
    wrong: dict[str, list[str]] = {}
    for case, result in zip(ON_FOUR, run_group(run, list(ON_FOUR), 4), strict=True):
        trained = result.get("trained")
        wrong[case.name] = [result["error"]] if trained is None else differences(trained, merged(case), tolerance=5e-6)
    assert {name: sentences for name, sentences in wrong.items() if sentences} == {}
