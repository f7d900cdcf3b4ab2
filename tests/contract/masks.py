"""Attention masks that depend on the data: the dense model's logits for flagged tokens, the cases, and the faults.

The reference shares no code with the tested code. Each document runs separately through transformers' eager model. A
prefix is given to that model as a mask of [seq_len, seq_len].
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Mapping
from typing import Any
from unittest import mock

import torch
from transformers.models.bloom import modeling_bloom

from tests.contract.cases import recipe
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MODELS, MeshCase
from trainers.kernels import spans
from trainers.mesh import context_parallel
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

WORLD_SIZE = 4
_FLAG = 2**40


def labels_of(tokens: torch.Tensor) -> torch.Tensor:
    """Returns the labels of [batch, seq_len + 1] tokens; -100 for flagged tokens, which cross-entropy ignores."""
    return torch.where(tokens[:, 1:] < _FLAG, tokens[:, 1:], -100)


def dense_logits(model: torch.nn.Module, tokens: torch.Tensor, trained_recipe: Recipe) -> torch.Tensor:
    """Returns the logits of [batch, seq_len] flagged tokens under the recipe's attention mask."""
    if trained_recipe.attention_mask == "causal":
        return model(tokens % _FLAG).logits
    return torch.cat([_dense_sequence(model, row, trained_recipe) for row in tokens])


def _dense_sequence(model: Any, row: torch.Tensor, trained_recipe: Recipe) -> torch.Tensor:
    places = (row & _FLAG).nonzero().flatten().tolist()
    ids = (row % _FLAG)[None]
    if trained_recipe.attention_mask == "document":
        borders = [0, *places, len(row)]
        documents = (ids[:, start:stop] for start, stop in itertools.pairwise(borders))
        return torch.cat([model(document).logits for document in documents], dim=1)
    allowed = torch.ones(len(row), len(row), dtype=torch.bool).tril()
    allowed[: len(places), : len(places)] = True
    added = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[None, None]
    if trained_recipe.model.position == "alibi":  # transformers wants a mask of padding there
        with mock.patch.object(modeling_bloom, "create_causal_mask", lambda **_: added):
            return model(ids).logits
    return model(ids, attention_mask=added).logits


def _case(
    name: str, mask: str, fault: str = "", precision: str = "fp32", trained: str = "all", **layout: Any
) -> MeshCase:
    model = {**MODELS, **FAMILIES}[name]
    masked = dataclasses.replace(recipe(model, precision), attention_mask=mask, trained_tokens=trained)  # type: ignore[arg-type]
    return MeshCase(recipe=masked, layout=Layout(**layout), fault=fault)


_DDP: dict[str, Any] = {"engine": "ddp"}
_STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2}
_STAGE_3: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3}
_ENGINES = (_DDP, _STAGE_2, _STAGE_3)


def quick() -> list[MeshCase]:
    """Returns the cases that run at every change: each mask with each position, axis, attention and loss, two or three
    of these in a case, followed by the faults.
    """
    return [
        _case("gpt2", "document", **_DDP, dp_replicate=4, attention="eager"),
        _case("bloom", "document", **_STAGE_3, cp=2, dp_shard=2, attention="sdpa", loss="chunked"),
        _case("llama", "document", **_STAGE_2, cp=2, tp=2, attention="flex", loss="chunked"),
        _case("neox", "document", **_DDP, pp=2, dp_replicate=2, attention="sdpa", checkpointing="full"),
        _case("gemma3_text", "document", **_STAGE_3, cp=2, dp_shard=2, attention="sdpa", loss="chunked"),
        _case("gemma3_text", "document", **_DDP, pp=2, tp=2, attention="eager"),
        _case("bloom", "prefix", **_DDP, pp=4, attention="eager", loss="chunked"),
        _case("bloom", "prefix", **_STAGE_2, tp=2, cp=2, attention="flex", checkpointing="selective"),
        _case("gpt2", "prefix", **_STAGE_3, cp=2, tp=2, attention="sdpa"),
        _case("llama", "prefix", precision="bf16", **_STAGE_3, dp_shard=4, attention="eager", checkpointing="every_2"),
        _case("llama", "causal", trained="marked", **_STAGE_3, dp_shard=4, attention="sdpa", loss="chunked"),
        _case("neox", "causal", trained="marked", **_DDP, pp=2, tp=2, attention="sdpa"),
        _case("gpt2", "document", trained="marked", **_STAGE_2, cp=2, dp_shard=2, attention="sdpa"),
        *(_case(model, mask, fault, **_DDP, dp_replicate=4, attention="sdpa") for fault, (model, mask) in _OF.items()),
    ]


def product() -> list[MeshCase]:
    """Returns a case for every allowed combination of model, mask, engine, attention and degree; losses alternate."""
    degrees: tuple[dict[str, int], ...] = ({}, {"tp": 2}, {"cp": 2}, {"cp": 2, "tp": 2}, {"pp": 2}, {"pp": 2, "cp": 2})
    mesh_cases: list[MeshCase] = []
    chosen = itertools.product(
        ({**MODELS, **FAMILIES}), ("document", "prefix"), _ENGINES, ("eager", "sdpa", "flex"), degrees
    )
    for place, (name, mask, engine, attention, split) in enumerate(chosen):
        ranks = WORLD_SIZE
        for degree in split.values():
            ranks //= degree
        data: dict[str, Any] = {"dp_replicate" if engine is _DDP else "dp_shard": ranks}
        loss = ("plain", "chunked")[place % 2]
        chosen_layout: dict[str, Any] = {**engine, **data, **split, "attention": attention, "loss": loss}
        case = _case(name, mask, **chosen_layout)
        if standing_refusal(case.recipe, case.layout, WORLD_SIZE) is None:
            mesh_cases.append(case)
    return mesh_cases


@contextlib.contextmanager
def _changed_spans(**change: Any) -> Generator[None, None, None]:
    original = context_parallel.spans_of

    def changed(tokens: torch.Tensor, *arguments: Any) -> spans.Spans:
        made_spans = original(tokens, *arguments)
        return dataclasses.replace(made_spans, **{name: by(made_spans) for name, by in change.items()})

    with mock.patch.object(context_parallel, "spans_of", changed):
        yield


def _counting_each_alone(original: Any) -> Any:
    return lambda self, micro_batches, **_: original(self, micro_batches, all_ranks=False)


FAULTS: Mapping[str, Callable[[], Any]] = {
    "mask leaks one token across a border": lambda: _changed_spans(
        first=lambda of_batch: (of_batch.first - 1).clamp(min=0)
    ),
    "positions go on across borders": lambda: mock.patch.object(
        context_parallel.ContextParallel,
        "positions",
        lambda self: {"attention_mask": torch.ones_like(self._share.spans.first)},
    ),
    "prefix sees no later token": lambda: _changed_spans(
        last=lambda of_batch: of_batch.queries.expand_as(of_batch.last).contiguous()
    ),
    "loss of labels across borders": lambda: mock.patch.object(context_parallel, "IGNORED", 0),
    "each rank divides by its own labels": lambda: mock.patch.object(
        context_parallel.ContextParallel,
        "count_labels",
        _counting_each_alone(context_parallel.ContextParallel.count_labels),
    ),
}

# Fault -> model and mask, planted on four data-parallel ranks.
_OF: Mapping[str, tuple[str, str]] = {
    "mask leaks one token across a border": ("bloom", "document"),
    "positions go on across borders": ("gpt2", "document"),
    "prefix sees no later token": ("llama", "prefix"),
    "loss of labels across borders": ("llama", "document"),
    "each rank divides by its own labels": ("gpt2", "prefix"),
}
