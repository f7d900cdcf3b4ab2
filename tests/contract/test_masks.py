"""Document and prefix masks train as the dense model does, gradient by gradient; each planted fault shows."""

import functools
from typing import Any

import pytest

from tests.contract.group import run_group
from tests.contract.masks import WORLD_SIZE, product, quick
from tests.contract.mesh_group import run_all
from tests.contract.test_mesh import differences, wrong_in

pytestmark = pytest.mark.contract

QUICK = quick()


@functools.cache
def results() -> list[dict[str, Any]]:
    return run_group(run_all, QUICK, WORLD_SIZE)


def _all(*, faulty: bool) -> list[Any]:
    return [pytest.param(i, id=case.name) for i, case in enumerate(QUICK) if bool(case.fault) == faulty]


def _result(index: int) -> dict[str, Any]:
    result = results()[index]
    if "error" in result:
        pytest.fail(result["error"])
    return result


@pytest.mark.parametrize("index", _all(faulty=False))
def test_gradients_of_every_parameter_are_those_of_documents_alone_and_of_dense_prefixes(index: int) -> None:
    result = _result(index)
    assert differences(result["trained"], QUICK[index].recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("index", _all(faulty=True))
def test_a_planted_fault_is_seen(index: int) -> None:
    assert differences(_result(index)["trained"], QUICK[index].recipe) != []


@pytest.mark.heavy
def test_every_model_mask_engine_attention_and_degree_trains_as_the_dense_model() -> None:
    assert wrong_in(product(), WORLD_SIZE) == {}
