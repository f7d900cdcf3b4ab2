"""The space of `benchmarks.slow_network`: a model small enough for a core, its gradients too large for a slow link."""

from collections.abc import Iterator, Sequence
from typing import Any

from search_spaces.space import Point, Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

WORKERS = 2
"""Workers of a host: with one alone nothing could be sharded inside it."""
_FSDP = {"engine": "fsdp", "zero_stage": 3, "grad_sync": "every"}
_SUMMED = {"engine": "fsdp", "zero_stage": 2, "grad_sync": "last"}
_LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "pipeline": {"engine": "ddp"},  # and a stage on each host
    "fsdp": _FSDP,
    "hybrid": {**_FSDP, "dp_shard": WORKERS},
    "fsdp summed": _SUMMED,
    "hybrid summed": {**_SUMMED, "dp_shard": WORKERS},
}


def _points(hosts: int, batches: Sequence[int]) -> Iterator[Point]:
    """Yields compression for the smallest batch, whose exchange weighs most, and sums over micro-steps where there are
    some.
    """
    for batch in batches:
        for name, layout in _LAYOUTS.items():
            if batch > batches[0] or "summed" not in name:
                stages = {"pp": hosts} if name == "pipeline" else {}
                axes, recipe = {**layout, **stages}, {"global_batch": batch}
                yield Point(name=f"{name} {batch}", micro_batch=2, layout=axes, recipe=recipe)
    for compression in ("bf16", "powersgd_4"):
        recipe = {"global_batch": batches[0], "compression": compression}
        yield Point(name=f"ddp {batches[0]} {compression}", micro_batch=2, layout=_LAYOUTS["ddp"], recipe=recipe)


def space(hosts: int, batches: Sequence[int]) -> Space:
    """Returns a GPT-2 of 1.8 million parameters on 2 hosts, 7 MB of gradients, in each of these global batches.

    It has 2 layers, or as many as there are hosts, for a pipeline with a stage on each.
    """
    model = ModelSpec(
        name="slow-network",
        architecture="gpt2",
        num_layers=max(2, hosts),
        hidden_size=256,
        num_heads=4,
        vocab_size=512,
        max_positions=128,
    )
    recipe = Recipe(model=model, seq_len=128, global_batch=batches[0], compute_precision="fp32", learning_rate=1e-3)
    return Space(
        name="slow_network",
        summary="a small GPT-2 over gloo: what to do where the link between hosts is slow",
        recipe=recipe,
        axes={},
        points=tuple(_points(hosts, batches)),
        num_workers=WORKERS * hosts,
        repeats=0,
    )
