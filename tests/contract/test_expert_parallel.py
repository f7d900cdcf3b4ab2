"""Ranks that share out experts train as the dense model does, gradient by gradient; planted faults show."""

# pyright: reportPrivateUsage=false

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from tests.contract.covering import Groups, covering, parameters
from tests.contract.expert_cases import cases, in_half, pairs_of_degrees
from tests.contract.expert_faults import QUIET
from tests.contract.family_cases import FAMILIES
from tests.contract.group import run_group
from tests.contract.mesh_cases import MeshCase
from tests.contract.mesh_group import run_all
from tests.contract.test_mesh import differences, expected, wrong_in
from trainers.kernels import experts
from trainers.models.model import config_of

pytestmark = pytest.mark.contract

CASES = [case for world_size in (2, 4) for case in covering(cases(world_size))]
GROUPS = Groups(functools.partial(run_group, run_all), CASES)


@pytest.mark.parametrize("case", parameters(case for case in CASES if not case.fault))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], case.recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in CASES if case.fault))
def test_a_planted_fault_is_seen(case: MeshCase) -> None:
    trained = GROUPS.result(case)["trained"]
    assert differences(trained, case.recipe) != []
    sound = expected(case.recipe).losses[0]
    assert (abs(trained.losses[0] / sound - 1) < 1e-5) == (case.fault in QUIET)


@pytest.mark.heavy
def test_every_pair_of_degrees_beside_shared_out_experts_trains_as_the_dense_model() -> None:
    assert wrong_in(pairs_of_degrees(), 8) == {}


def test_in_bf16_nothing_but_the_order_of_sums_changes() -> None:
    """Checks against the same layout without `ep`: in bf16 some tokens go to other experts than the dense model's."""
    outcomes = run_group(run_all, in_half(), 2)
    assert [outcome.get("error") or outcome["mismatches"] for outcome in outcomes] == [[]] * len(outcomes)
    trained = [outcome["trained"] for outcome in outcomes]
    for undivided, shared in zip(trained[::2], trained[1::2], strict=True):
        # What a rank makes of a token is summed there, and rounded once more before the ranks' sums are added.
        assert shared.losses[0] == pytest.approx(undivided.losses[0], rel=1e-4)
        assert shared.grad_norms[0] == pytest.approx(undivided.grad_norms[0], rel=1e-2)
        errors = {
            name: ((shared.gradients[name] - gradient).norm() / gradient.norm()).item()
            for name, gradient in undivided.gradients.items()
        }
        assert max(errors.values()) < 1e-2, errors


def _dispatched(chosen_of_ranks: list[list[list[int]]]) -> list[str]:
    """Sends the rows of this rank's tokens to their experts; returns what differs from experts that one rank has."""
    rank, size = dist.get_rank(), dist.get_world_size()
    spec = FAMILIES["mixtral"]
    undivided: Any = AutoModelForCausalLM.from_config(config_of(spec)).model.layers[0].mlp.experts
    shared: Any = AutoModelForCausalLM.from_config(config_of(spec)).model.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(0)
    for name, parameter in undivided.named_parameters():
        parameter.data.normal_(generator=generator)
        setattr(shared, name, torch.nn.Parameter(parameter.data.chunk(size)[rank].clone()))
    experts.share_out(shared, dist.group.WORLD)
    chosen = torch.tensor(chosen_of_ranks[rank], dtype=torch.int64).view(-1, spec.experts_per_token)
    generator.manual_seed(1 + rank)
    rows = [torch.randn(len(chosen), spec.hidden_size, generator=generator).requires_grad_() for _ in range(2)]
    rows[1].data.copy_(rows[0].data)
    weights = [torch.full(chosen.shape, 0.3, requires_grad=True) for _ in range(2)]
    outputs = [experts._grouped(module, rows[i], chosen, weights[i]) for i, module in enumerate((undivided, shared))]
    for output in outputs:
        (output * torch.linspace(-1, 1, spec.hidden_size)).sum().backward()
    pairs = {"outputs": outputs, "rows": [row.grad for row in rows], "weights": [weight.grad for weight in weights]}
    for name, parameter in undivided.named_parameters():
        dist.all_reduce(parameter.grad)
        pairs[name] = [parameter.grad.chunk(size)[rank], shared.get_parameter(name).grad]
    wrong = [
        f"rank {rank}: {name}"
        for name, (expected, received) in pairs.items()
        if expected is None or received is None or not torch.allclose(expected, received, rtol=1e-5, atol=1e-4)
    ]
    everywhere: list[Any] = [None] * size
    dist.all_gather_object(everywhere, wrong)
    return [name for names in everywhere for name in names]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param([[[0, 3], [2, 1], [3, 2]], [[1, 0]]], id="uneven"),
        pytest.param([[[0, 1], [1, 0], [0, 1]], [[0, 1]]], id="a rank without a row"),
        pytest.param([[[2, 0]] * 5, [[2, 1]] * 7], id="all to one expert"),
        pytest.param([[[0, 3], [2, 1]], []], id="a rank without a token"),
        pytest.param([[], []], id="no token at all"),
    ],
)
def test_rows_reach_their_experts_and_come_back(chosen: list[list[list[int]]]) -> None:
    assert run_group(_dispatched, chosen, 2) == []
