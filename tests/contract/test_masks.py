"""Document and prefix masks train as the dense model does, gradient by gradient; each planted fault shows."""

import functools

import pytest

from tests.contract.covering import Groups, parameters
from tests.contract.group import run_group
from tests.contract.masks import WORLD_SIZE, product, quick
from tests.contract.mesh_cases import MeshCase
from tests.contract.mesh_group import run_all
from tests.contract.test_mesh import differences, wrong_in

pytestmark = pytest.mark.contract

QUICK = quick()
GROUPS = Groups(functools.partial(run_group, run_all), QUICK)


@pytest.mark.parametrize("case", parameters(case for case in QUICK if not case.fault))
def test_gradients_of_every_parameter_are_those_of_documents_alone_and_of_dense_prefixes(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], case.recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in QUICK if case.fault))
def test_a_planted_fault_is_seen(case: MeshCase) -> None:
    assert differences(GROUPS.result(case)["trained"], case.recipe) != []


@pytest.mark.heavy
def test_every_model_mask_engine_attention_and_degree_trains_as_the_dense_model() -> None:
    assert wrong_in(product(), WORLD_SIZE) == {}
