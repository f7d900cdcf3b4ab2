"""Each recent family trains as transformers' own eager model does, gradient by gradient; planted faults show."""

import functools
from typing import Any

import pytest

from tests import needs
from tests.contract.family_cases import FAMILIES, FAULTS, WORLD_SIZE, product, quick
from tests.contract.group import run_group
from tests.contract.mesh_group import run_all
from tests.contract.test_mesh import differences, wrong_in
from trainers.spec import architectures
from trainers.spec.codec import identity

pytestmark = pytest.mark.contract

QUICK = quick()
_NAMES = [case.name for case in QUICK]


@functools.cache
def results() -> list[dict[str, Any]]:
    return run_group(run_all, QUICK, WORLD_SIZE)


def _result(index: int) -> dict[str, Any]:
    result = results()[index]
    if "error" in result:
        needs.family(QUICK[index].recipe.model.architecture)
        pytest.fail(result["error"])
    return result


def test_every_family_has_a_case() -> None:
    with_contracts_of_their_own = {"bloom", "gpt2", "gpt_neox"}
    specs = [case.recipe.model for case in QUICK if not case.fault]
    assert {spec.architecture for spec in specs} | with_contracts_of_their_own == set(architectures.names())
    assert {identity(spec) for spec in specs} == {identity(spec) for spec in FAMILIES.values()}


@pytest.mark.parametrize("index", range(len(QUICK) - len(FAULTS)), ids=_NAMES[: -len(FAULTS)])
def test_gradients_of_every_parameter_are_those_of_the_eager_model(index: int) -> None:
    result = _result(index)
    assert differences(result["trained"], QUICK[index].recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("index", range(len(QUICK) - len(FAULTS), len(QUICK)), ids=_NAMES[-len(FAULTS) :])
def test_a_planted_fault_is_seen(index: int) -> None:
    assert differences(_result(index)["trained"], QUICK[index].recipe) != []


@pytest.mark.heavy
def test_every_family_engine_attention_and_degree_trains_as_the_eager_model() -> None:
    assert wrong_in(product(), WORLD_SIZE) == {}
