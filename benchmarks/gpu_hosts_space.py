"""The spaces of `benchmarks.gpu_hosts`: what may be done where the link between two hosts of two GPUs is slow."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import search_spaces
from search_spaces.space import Point, Space

_KERNELS = {"compile": "block", "loss": "chunked"}
_SHARDED = {"engine": "fsdp", "zero_stage": 2, "grad_sync": "last"}
_SMALL: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "pipeline": {"engine": "ddp", "pp": 2},  # a stage on each host
    "sharded": _SHARDED,
    "hybrid": {**_SHARDED, "dp_shard": 2},
}
# The states of 7 billion parameters need the memory of all four devices.
_LARGE: dict[str, dict[str, Any]] = {
    "full shards": {"engine": "fsdp", "zero_stage": 3, "grad_sync": "every"},
    "sharded": _SHARDED,
    "pipeline": {**_SHARDED, "pp": 2},
}


def _points(
    layouts: dict[str, dict[str, Any]], batches: Sequence[int], micro_batch: int, **shared: Any
) -> Iterator[Point]:
    """Yields each layout with the axes of `shared` in each global batch."""
    for batch in batches:
        for name, axes in layouts.items():
            layout, recipe = {**_KERNELS, **shared, **axes}, {"global_batch": batch}
            yield Point(name=f"{name} {batch}", micro_batch=micro_batch, layout=layout, recipe=recipe)


def small(batches: Sequence[int] = (64, 512)) -> Space:
    """Returns GPT-2 in these global batches: the smaller one is a micro-batch of 16 on each of four devices."""
    points = list(_points(_SMALL, batches, 16, attention="sdpa"))
    powersgd = {"global_batch": batches[0], "compression": "powersgd_4"}
    layout = {**_KERNELS, "attention": "sdpa", "engine": "ddp"}
    points.append(Point(name=f"powersgd {batches[0]}", micro_batch=16, layout=layout, recipe=powersgd))
    return _space("gpt2", batches[0], points)


def large(batches: Sequence[int] = (64, 512)) -> Space:
    """Returns BLOOM-7b1 in these global batches, with selective checkpointing."""
    return _space("bloom7b", batches[0], _points(_LARGE, batches, 4, attention="flex", checkpointing="selective"))


def _space(model: str, batch: int, points: Iterable[Point]) -> Space:
    recipe = dataclasses.replace(search_spaces.load(model).recipe, global_batch=batch)
    summary = f"{model} on two hosts of two GPUs"
    return Space(name=f"gpu_hosts_{model}", summary=summary, recipe=recipe, axes={}, points=tuple(points), repeats=0)
