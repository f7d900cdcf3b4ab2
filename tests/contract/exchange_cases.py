"""Layouts of two and four ranks that exchange heads for tokens of their sequences, and faults to be detected."""

import dataclasses
import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from tests.contract.cases import recipe
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MODELS, MeshCase
from trainers.kernels import attention, whole_sequences
from trainers.mesh import context_parallel
from trainers.spec.layout import Layout
from trainers.spec.support import standing_refusal

_ALL: Mapping[str, Any] = {**FAMILIES, **MODELS}
_DDP: Mapping[str, Any] = {"engine": "ddp", "zero_stage": 0}
_SHARED: Mapping[str, Any] = {"engine": "fsdp", "zero_stage": 3, "attention": "sdpa", "cp_exchange": "all_to_all"}
_ROWS: Mapping[int, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    2: (
        ("llama", "causal", {"cp": 2, "compile": "block", "checkpointing": "selective", "loss": "chunked"}),
        ("gpt_oss", "causal", {"cp": 2, "attention": "flex", "checkpointing": "full"}),
        ("qwen3", "document", {"cp": 2, "zero_stage": 2, "attention": "flex"}),
    ),
    4: (
        ("llama", "causal", {"cp": 4, "checkpointing": "full"}),  # a key/value head goes to two ranks
        ("bloom", "causal", {"cp": 2, "tp": 2, "zero_stage": 2, "attention": "flex", "checkpointing": "every_2"}),
        ("gpt2", "causal", {**_DDP, "cp": 2, "pp": 2, "checkpointing": "selective", "loss": "chunked"}),
        ("neox", "causal", {"cp": 2, "dp_shard": 2, "grad_sync": "every", "loss": "chunked"}),
        ("mistral", "causal", {**_DDP, "cp": 2, "dp_replicate": 2, "checkpointing": "full"}),
        ("gemma3_text", "document", {"cp": 2, "dp_shard": 2, "loss": "chunked"}),
        ("bloom", "document", {**_DDP, "cp": 4}),
        ("gpt2", "prefix", {"cp": 2, "tp": 2}),
        ("mixtral", "causal", {"cp": 2, "dp_shard": 2, "ep": 4, "experts": "grouped", "checkpointing": "full"}),
    ),
}
_FAULTY: Mapping[str, str] = {
    "heads exchanged without gradients": "llama",
    "heads returned to their neighbours": "llama",
    "keys of the next head": "llama",
    "ALiBi of the first heads": "bloom",
    "sinks of the first heads": "gpt_oss",
    "positions not cut": "llama",
}
"""Faults on two ranks, each with its model."""


def _case(name: str, mask: str, layout: Mapping[str, Any], fault: str = "") -> MeshCase:
    chosen = dataclasses.replace(recipe(_ALL[name], "fp32"), attention_mask=mask)  # type: ignore[arg-type]
    return MeshCase(recipe=chosen, layout=Layout(**{**_SHARED, **layout}), fault=fault)


def quick(world_size: int) -> list[MeshCase]:
    """Returns the cases of this number of ranks that run at every change; for two ranks also the faults."""
    faulty = _FAULTY.items() if world_size == 2 else ()
    return [
        *(_case(name, mask, layout) for name, mask, layout in _ROWS[world_size]),
        *(_case(name, "causal", _flex(name, {"cp": 2}), fault) for fault, name in faulty),
    ]


def product() -> list[MeshCase]:
    """Returns a case on four ranks for every allowed combination of attention, mask, engine and degree; kernels and
    checkpointing alternate.
    """
    names = (*MODELS, "qwen2", "phi3", "cohere2", "ministral3", "gemma3_text", "granite", "mixtral", "gpt_oss")
    engines = ({**_DDP}, {"zero_stage": 2}, {"zero_stage": 3})
    degrees: tuple[dict[str, int], ...] = ({"cp": 2}, {"cp": 4}, {"cp": 2, "tp": 2}, {"cp": 2, "pp": 2})
    checkpointings = itertools.cycle(("none", "selective", "full", "every_2", "none"))
    kernels = itertools.cycle(("sdpa", "flex"))
    cases: list[MeshCase] = []
    for name, mask, engine, split in itertools.product(names, ("causal", "document", "prefix"), engines, degrees):
        free = "dp_replicate" if engine.get("engine") == "ddp" else "dp_shard"
        shared = {free: 2} if split == {"cp": 2} else {}
        kernel = {"attention": next(kernels), "checkpointing": next(checkpointings)}
        case = _case(name, mask, _flex(name, {**engine, **split, **shared, **kernel}))
        if standing_refusal(case.recipe, case.layout, 4) is None:
            cases.append(case)
    return cases


def _flex(name: str, layout: dict[str, Any]) -> dict[str, Any]:
    return {**layout, "attention": "flex"} if name == "gpt_oss" else layout


def _without_gradients(original: Any) -> Any:
    # The tensor stays in the graph: FSDP2 waits for its gradient.
    return lambda tensor, group: original(tensor.detach(), group) + 0 * tensor.sum()


def _of_neighbours(original: Any) -> Any:
    return lambda out, group: original(out, group).roll(1, 2)


def _of_next_head(original: Any) -> Any:
    return lambda query, key, value, group: original(query, key.roll(1, 1), value, group)


def _of_first_rank(original: Any) -> Any:
    return lambda of_heads, group: of_heads[: len(original(of_heads, group))] + 0 * of_heads.sum()


@contextmanager
def _attending_with_first_heads() -> Generator[None, None, None]:
    original = context_parallel.ContextParallel.__init__

    def changed(self: Any, *args: Any, **settings: Any) -> None:
        original(self, *args, **settings)
        self._share.heads = range(len(self._share.heads))

    with mock.patch.object(context_parallel.ContextParallel, "__init__", changed):
        yield


def _replaced(owner: Any, name: str, change: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    return mock.patch.object(owner, name, change(getattr(owner, name)))


FAULTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "heads exchanged without gradients": lambda: _replaced(whole_sequences, "all_to_all", _without_gradients),
    "heads returned to their neighbours": lambda: _replaced(attention, "own_tokens", _of_neighbours),
    "keys of the next head": lambda: _replaced(attention, "whole_sequences", _of_next_head),
    "ALiBi of the first heads": _attending_with_first_heads,
    "sinks of the first heads": lambda: _replaced(attention, "own_heads", _of_first_rank),
}
