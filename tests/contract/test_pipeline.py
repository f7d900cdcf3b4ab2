"""Every kind of pipeline trains as the dense model does, gradient by gradient; each planted fault shows."""

# Faults are planted in private places.
# pyright: reportPrivateUsage=false

import contextlib
import functools
import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.contract import mesh_group
from tests.contract.cases import SEQ_LEN, recipe
from tests.contract.group import run_group
from tests.contract.mesh_cases import MODELS, MeshCase
from tests.contract.pipeline_cases import WORLD_SIZE, product, quick
from tests.contract.test_mesh import differences
from trainers.engines.create import create_engine
from trainers.engines.ddp import DdpEngine
from trainers.engines.torch_engine import TorchEngine
from trainers.marks.step import Unmarked
from trainers.mesh import pipeline, stage_model
from trainers.mesh.pipeline import Pipeline
from trainers.mesh.schedule import ScheduledStage
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract

QUICK = quick()
PRODUCT = {model: [case for case in product() if case.recipe.model.name == model] for model in MODELS}


def _run_all(cases: list[MeshCase]) -> list[dict[str, Any]]:
    """Runs `mesh_group.run_all` with the faults of pipelines too."""
    results: list[dict[str, Any]] = []
    for case in cases:
        with _PLANTED[case.fault]() if case.fault in _PLANTED else contextlib.nullcontext():
            fault = "" if case.fault in _PLANTED else case.fault
            results += mesh_group.run_all([MeshCase(recipe=case.recipe, layout=case.layout, fault=fault)])
    return results


class _AllPositions(nn.Module):
    """Adds positions that the first stage has added already."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions[..., None] * torch.linspace(0, 1, 32)  # of one value in every feature a norm would see nothing


def _last_alone(module: Any) -> Callable[[Any, nn.Module, bool], bool]:
    """Returns `module` changed to lose the gradients accumulated before the last micro-batch."""

    def exchanges(self: Any, stage: nn.Module, last: bool) -> bool:
        if last:
            for parameter in stage.parameters():
                parameter.grad = None
        return module(self, stage, last)

    return exchanges


_change = mock.patch.object
_PLANTED: dict[str, Callable[[], Any]] = {
    "gradients of tied copies not summed": lambda: _change(Pipeline, "sum_tied", lambda *_: None),
    "norm counts tied copies twice": lambda: _change(
        TorchEngine, "_named_gradients", _with_second_copy(TorchEngine._named_gradients)
    ),
    "norm of this rank's stages alone": lambda: _change(TorchEngine, "_norm_group", lambda _: None),
    "loss not divided by micro-batches": lambda: _change(TorchEngine, "_scaled", lambda _, loss: loss),
    "gradients exchanged for the last micro-batch alone": lambda: _change(
        DdpEngine, "_exchanges", _last_alone(DdpEngine._exchanges)
    ),
    "gradients not exchanged": lambda: _change(DdpEngine, "_exchanges", lambda *_: False),
    "positions added by every stage": lambda: _change(stage_model, "NoPositions", _AllPositions),
    "stages receive tokens in another order": lambda: _change(pipeline, "run_stage", _reversed(pipeline.run_stage)),
}


def _reversed(run_stage: Any) -> Any:
    """Returns `run_stage` changed to reverse the sequences that a stage receives."""

    def run(stage: Any, model: Any, module: Any, context: Any, stage_input: Any, tokens: Any, **options: Any) -> Any:
        received = stage_input if stage.has_embeddings else stage_input.flip(1)
        return run_stage(stage, model, module, context, received, tokens, **options)

    return run


def _with_second_copy(named: Any) -> Any:
    return lambda self, *, tied_once=False: named(self)


@functools.cache
def results(model: str = "") -> list[dict[str, Any]]:
    """Returns the results of the product's cases with `model`, or those of the quick cases where no model is named."""
    return run_group(_run_all, PRODUCT[model] if model else QUICK, WORLD_SIZE)


def _result(index: int, model: str = "") -> dict[str, Any]:
    result = results(model)[index]
    if "error" in result:
        pytest.fail(result["error"])
    return result


def _all(cases: list[MeshCase], *, faulty: bool) -> list[Any]:
    return [pytest.param(i, id=case.name) for i, case in enumerate(cases) if bool(case.fault) == faulty]


@pytest.mark.parametrize("index", _all(QUICK, faulty=False))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(index: int) -> None:
    result = _result(index)
    assert differences(result["trained"], QUICK[index].recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("index", _all(QUICK, faulty=True))
def test_a_planted_fault_is_seen(index: int) -> None:
    assert differences(_result(index)["trained"], QUICK[index].recipe) != []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "index"),
    [pytest.param(model, i, id=case.name) for model in MODELS for i, case in enumerate(PRODUCT[model])],
)
def test_every_combination_trains_as_the_dense_model_does(model: str, index: int) -> None:
    result = _result(index, model)
    assert differences(result["trained"], PRODUCT[model][index].recipe) == []
    assert result["mismatches"] == []


def _most_hidden_states(num_micro_batches: int) -> list[int]:
    """Returns the most hidden states that exist when a backward pass begins, for each rank."""
    model = MODELS["gpt2"]
    engine: Any = create_engine(recipe(model, "fp32"), Layout(engine="ddp", pp=2), torch.device("cpu"))
    counts: list[int] = []

    def counted(original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            gc.collect()
            shape = (1, SEQ_LEN, model.hidden_size)
            tensors = [
                get_object
                for get_object in gc.get_objects()
                if type(get_object) is torch.Tensor and get_object.shape == shape
            ]
            counts.append(len({tensor.data_ptr() for tensor in tensors} - {0}))
            return original(*args, **kwargs)

        return backward

    with _change(ScheduledStage, "backward_maybe_with_nosync", counted(ScheduledStage.backward_maybe_with_nosync)):
        engine.step([torch.zeros((1, SEQ_LEN + 1), dtype=torch.int64)] * num_micro_batches, Unmarked())
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, max(counts))
    return of_ranks


def test_hidden_states_do_not_grow_with_the_accumulation() -> None:
    few, many = (run_group(_most_hidden_states, count, 2) for count in (4, 12))
    assert few == many


def _shapes_sent(layout: Layout) -> list[list[tuple[int, ...]]]:
    """Returns the shapes of what each rank's stage returns in a step of four micro-batches."""
    engine: Any = create_engine(recipe(MODELS["gpt2"], "fp32"), layout, torch.device("cpu"))
    shapes: list[tuple[int, ...]] = []

    def recorded(original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
            output = original(*args, **kwargs)
            shapes.append(tuple(output.shape))
            return output

        return forward

    with _change(ScheduledStage, "forward_maybe_with_nosync", recorded(ScheduledStage.forward_maybe_with_nosync)):
        engine.step([torch.zeros((1, SEQ_LEN + 1), dtype=torch.int64)] * 4, Unmarked())
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, shapes)
    return of_ranks


def test_stages_send_the_tokens_of_their_rank_alone() -> None:
    ranks = run_group(_shapes_sent, Layout(engine="ddp", pp=2, tp=2), 4)
    part = (1, SEQ_LEN, MODELS["gpt2"].hidden_size // 2)
    assert ranks == [[part] * 4, [part] * 4, [(1,)] * 4, [(1,)] * 4]
