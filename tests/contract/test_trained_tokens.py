"""The loss of marked tokens is their mean over all ranks and micro-batches, whatever each of these has of them.

Ranks have 25 and 4 labels, one micro-batch has none. Each rank's own mean has nearly the same loss and other gradients.
"""

import dataclasses
import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tests.contract.cases import LLAMA, SEQ_LEN, recipe
from tests.contract.group import run_group
from tests.contract.mesh_group import note_gradients, planted
from tests.contract.reference import dense_model
from trainers.data.flags import UNTRAINED
from trainers.engines.create import create_engine
from trainers.marks.step import Unmarked
from trainers.measuring.timed_steps import losses_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.contract

_LABELS = ((20, 5), (4, 0))
"""Labels of each rank's micro-batches."""
_FAULT = "each rank divides by its own labels"
RECIPE = dataclasses.replace(recipe(LLAMA), trained_tokens="marked", global_batch=4, grad_clip=0.0)
CASES: dict[str, tuple[Layout, str]] = {
    "ddp": (Layout(engine="ddp", dp_replicate=2), ""),
    "fsdp": (Layout(engine="fsdp", zero_stage=3, dp_shard=2, loss="chunked"), ""),
    "fsdp 2": (Layout(engine="fsdp", zero_stage=2, dp_shard=2, grad_sync="every"), ""),
    "zero 1": (Layout(engine="deepspeed", zero_stage=1, dp_shard=2), ""),
    "zero 2": (Layout(engine="deepspeed", zero_stage=2, dp_shard=2, grad_sync="every"), ""),
    "zero 3": (Layout(engine="deepspeed", zero_stage=3, dp_shard=2, grad_sync="every"), ""),
    "whole model compiled": (Layout(engine="ddp", dp_replicate=2, compile="model"), ""),
    "planted": (Layout(engine="ddp", dp_replicate=2), _FAULT),
}


def _tokens(rank: int, micro_step: int) -> torch.Tensor:
    """Returns [1, seq_len + 1] tokens, of which the last ones are labels."""
    ids = torch.randint(
        0, LLAMA.vocab_size, (1, SEQ_LEN + 1), generator=torch.Generator().manual_seed(rank * 2 + micro_step)
    )
    ids[:, : SEQ_LEN + 1 - _LABELS[rank][micro_step]] += UNTRAINED
    return ids


def _run(cases: list[tuple[Recipe, Layout, str]]) -> list[dict[str, Any]]:
    return [_results_of(*case) for case in cases]


def _results_of(chosen: Recipe, layout: Layout, fault: str) -> dict[str, Any]:
    with planted(fault):
        engine: Any = create_engine(chosen, layout, torch.device("cpu"))
        gradients = note_gradients(engine) if layout.engine != "deepspeed" else {}
        result = engine.step([_tokens(dist.get_rank(), micro_step) for micro_step in range(2)], Unmarked())
        (loss,) = losses_of([result], _gathered)
        labels = None if result.num_labels is None else int(result.num_labels)
        engine.close()
    return {"loss": loss, "gradients": gradients, "norm": float(result.grad_norm), "labels": labels}


def _gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@functools.cache
def results() -> dict[str, dict[str, Any]]:
    answers = run_group(_run, [(RECIPE, layout, fault) for layout, fault in CASES.values()], 2)
    return dict(zip(CASES, answers, strict=True))


@functools.cache
def expected() -> dict[str, Any]:
    """Returns the results of one process, which has all sequences in one batch."""
    model = dense_model(RECIPE)
    tokens = torch.cat([_tokens(rank, micro_step) for rank in range(2) for micro_step in range(2)])
    labels = torch.where(tokens[:, 1:] < UNTRAINED, tokens[:, 1:], -100)
    logits = model(tokens[:, :-1] % UNTRAINED).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    return {"loss": loss.item(), "gradients": gradients, "norm": norm.item()}


def _error(case: str) -> float:
    """Returns the largest relative error of a parameter's gradient, or of the norm where an engine shows no others."""
    gradients, reference = results()[case]["gradients"], expected()["gradients"]
    if not gradients:
        return abs(results()[case]["norm"] / expected()["norm"] - 1)
    assert gradients.keys() == reference.keys()
    errors = [(gradients[name] - reference[name]).norm() / reference[name].norm() for name in reference]
    return float(max(errors))


@pytest.mark.parametrize("case", [name for name, (_, fault) in CASES.items() if not fault])
def test_gradients_are_those_of_one_process(case: str) -> None:
    assert _error(case) < 1e-6
    assert results()[case]["loss"] == pytest.approx(expected()["loss"], rel=1e-6)
    assert results()[case]["labels"] == sum(map(sum, _LABELS))


def test_each_ranks_own_mean_is_seen() -> None:
    assert _error("planted") > 1e-2
