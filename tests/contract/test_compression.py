"""Compressed gradients of DDP beside torch's own hooks."""

# pyright: reportPrivateUsage=false

import copy
import dataclasses
import sys
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.contract.cases import BLOOM, recipe
from tests.contract.group import run_group
from trainers import data
from trainers.engines.create import create_engine
from trainers.engines.ddp_compression import Compression
from trainers.marks.step import Unmarked
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract

_STEPS = 5


def _modules() -> tuple[DistributedDataParallel, DistributedDataParallel]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 24))
    # One bucket each, since several would wait for each other over gloo.
    return DistributedDataParallel(model), DistributedDataParallel(copy.deepcopy(model))


def _trained() -> list[dict[str, Any]]:
    """Returns for each step the largest difference of gradients and of errors from torch's own error feedback, the
    largest error, and where errors are kept.
    """
    ours, torchs = _modules()
    compression = Compression(ours, recipe(BLOOM, compression="powersgd_4"))
    state = PowerSGDState(None, 4, start_powerSGD_iter=sys.maxsize, orthogonalization_epsilon=cast(Any, 1e-8))
    torchs.register_comm_hook(state, powerSGD_hook)
    assert compression.in_effect() is None
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    steps: list[dict[str, Any]] = []
    for _step in range(_STEPS):
        inputs = torch.randn(16, 48, generator=generator)
        for module in (ours, torchs):
            module.zero_grad(set_to_none=False)
            module(inputs).square().sum().backward()
        compression.stepped()
        if state.start_powerSGD_iter == sys.maxsize:
            state.start_powerSGD_iter = state.iter
        errors = cast(Any, ours)._comm_hooks[0][1].errors
        pairs = list(zip(ours.parameters(), torchs.parameters(), strict=True))
        steps.append(
            {
                "gradients": max((cast(Any, a.grad) - b.grad).abs().max().item() for a, b in pairs),
                "errors": [(error - state.error_dict[index]).abs().max().item() for index, error in errors.items()],
                "largest": max((error.abs().max().item() for error in errors.values()), default=0.0),
                "places": {index: error.data_ptr() for index, error in errors.items()},
            }
        )
    assert compression.in_effect() == "powersgd_4"
    return steps


def _in_buckets() -> list[float]:
    """Returns the gradient norms of three steps of a model that has several buckets by torch's default."""
    model = dataclasses.replace(BLOOM, num_layers=6, hidden_size=512, ffn_size=2048)
    factored = recipe(model, compression="powersgd_4")
    engine = create_engine(factored, Layout(engine="ddp", dp_replicate=2), torch.device("cpu"))
    tokens = torch.from_numpy(data.source(factored).sequences(0, range(2)))
    return [float(engine.step([tokens], Unmarked()).grad_norm) for _ in range(3)]


def _both(_: None) -> tuple[list[dict[str, Any]], list[float]]:
    return _trained(), _in_buckets()


@pytest.fixture(scope="module")
def results() -> tuple[list[dict[str, Any]], list[float]]:
    return run_group(_both, None, 2, deadline_s=600)


def test_errors_of_powersgd_stay_in_place_and_are_those_of_torch_s_own_feedback(results: Any) -> None:
    first, *steps = results[0]
    assert not first["places"]
    assert steps[0]["places"]
    for step in steps:
        assert step["gradients"] == 0
        assert step["errors"] == [0] * len(step["places"])
        assert step["largest"] > 1
        assert step["places"] == steps[0]["places"]


def test_a_model_of_several_buckets_is_trained_over_gloo(results: Any) -> None:
    norms = results[1]
    assert len(norms) == 3 and all(norm > 0 for norm in norms)
