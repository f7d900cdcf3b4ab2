"""Ranks that exchange heads for the tokens of their sequences train as the dense model does, gradient by gradient."""

import dataclasses
import functools
from typing import Any

import pytest

from tests.contract.exchange_cases import product, quick
from tests.contract.group import run_group
from tests.contract.mesh_group import run_all
from tests.contract.test_mesh import differences, wrong_in
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

pytestmark = pytest.mark.contract

CASES = {world_size: quick(world_size) for world_size in (2, 4)}


@functools.cache
def results(world_size: int) -> list[dict[str, Any]]:
    return run_group(run_all, CASES[world_size], world_size)


def _each(*, faulty: bool) -> list[Any]:
    return [
        pytest.param(world_size, index, id=case.name)
        for world_size, cases in CASES.items()
        for index, case in enumerate(cases)
        if bool(case.fault) == faulty
    ]


def _result(world_size: int, index: int) -> tuple[Recipe, dict[str, Any]]:
    result = results(world_size)[index]
    if "error" in result:
        pytest.fail(result["error"])
    return CASES[world_size][index].recipe, result


@pytest.mark.parametrize(("world_size", "index"), _each(faulty=False))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(world_size: int, index: int) -> None:
    recipe, result = _result(world_size, index)
    assert differences(result["trained"], recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize(("world_size", "index"), _each(faulty=True))
def test_a_planted_fault_is_seen(world_size: int, index: int) -> None:
    recipe, result = _result(world_size, index)
    assert differences(result["trained"], recipe) != []


@pytest.mark.heavy
def test_every_model_mask_engine_kernel_and_degree_trains_as_the_dense_model() -> None:
    assert wrong_in(product(), 4) == {}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "degrees", "is_refused"),
    [
        (8, 8, {"cp": 4}, False),
        (8, 2, {"cp": 4}, False),  # each key/value head goes to two ranks
        (8, 2, {"cp": 4, "tp": 2}, False),
        (6, 6, {"cp": 4}, True),
        (12, 6, {"cp": 4}, True),
        (8, 8, {"cp": 4, "tp": 4}, True),  # two heads a rank
    ],
)
def test_heads_that_do_not_divide_are_refused(
    heads: int, kv_heads: int, degrees: dict[str, int], is_refused: bool
) -> None:
    model = ModelSpec(
        name="m",
        architecture="llama",
        num_layers=2,
        hidden_size=16 * heads,
        num_heads=heads,
        num_kv_heads=kv_heads,
        vocab_size=64,
    )
    trained = Recipe(model=model, seq_len=64, global_batch=8)
    exchanging = Layout(engine="ddp", attention="sdpa", cp_exchange="all_to_all", **degrees)  # type: ignore[arg-type]
    gathering = dataclasses.replace(exchanging, cp_exchange="gather")
    assert standing_refusal(trained, gathering, gathering.world_size) is None
    refusal = standing_refusal(trained, exchanging, exchanging.world_size)
    assert bool(refusal) == is_refused
    assert refusal is None or ("heads" in refusal and "cp_exchange gather" in refusal)
