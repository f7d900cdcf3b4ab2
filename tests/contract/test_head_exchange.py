"""Ranks that exchange heads for the tokens of their sequences train as the dense model does, gradient by gradient."""

import dataclasses
import functools

import pytest

from tests.contract.covering import Groups, parameters
from tests.contract.exchange_cases import product, quick
from tests.contract.group import run_group
from tests.contract.mesh_cases import MeshCase
from tests.contract.mesh_group import run_all
from tests.contract.test_mesh import differences, wrong_in
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

pytestmark = pytest.mark.contract

CASES = [case for world_size in (2, 4) for case in quick(world_size)]
GROUPS = Groups(functools.partial(run_group, run_all), CASES)


@pytest.mark.parametrize("case", parameters(case for case in CASES if not case.fault))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], case.recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in CASES if case.fault))
def test_a_planted_fault_is_seen(case: MeshCase) -> None:
    assert differences(GROUPS.result(case)["trained"], case.recipe) != []


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
