"""The space of `benchmarks.slow_network`: a model small enough for a core, its gradients too large for a slow link."""

import dataclasses
from collections.abc import Sequence

from search_spaces.space import Point, Space
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

WORKERS = 2
"""Of a host: with one alone nothing could be sharded inside it."""
_FSDP = {"engine": "fsdp", "zero_stage": 3, "grad_sync": "every"}
_SUMMED = {"engine": "fsdp", "zero_stage": 2, "grad_sync": "last"}
_DDP = {"engine": "ddp"}
_POINTS = (
    Point(name="ddp", micro_batch=2, layout=_DDP),
    Point(name="ddp every", micro_batch=2, layout={**_DDP, "grad_sync": "every"}),
    Point(name="bf16", micro_batch=2, layout=_DDP, recipe={"compression": "bf16"}),
    Point(name="powersgd", micro_batch=2, layout=_DDP, recipe={"compression": "powersgd_4"}),
    Point(name="fsdp", micro_batch=2, layout=_FSDP),
    Point(name="fsdp last", micro_batch=2, layout=_SUMMED),
    Point(name="hybrid", micro_batch=2, layout={**_FSDP, "dp_shard": WORKERS}),
    Point(name="hybrid last", micro_batch=2, layout={**_SUMMED, "dp_shard": WORKERS}),
)


def space(hosts: int, batches: Sequence[int]) -> Space:
    """A GPT-2 of 2 layers, 1.8 million parameters, 7 MB of gradients, in each of these global batches."""
    model = ModelSpec(
        name="slow-network",
        architecture="gpt2",
        num_layers=2,
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
        further_recipes=tuple(dataclasses.replace(recipe, global_batch=each) for each in batches[1:]),
        axes={},
        points=_POINTS,
        num_workers=WORKERS * hosts,
        repeats=0,
    )
