"""BLOOM 7b1 (https://huggingface.co/bigscience/bloom-7b1), whose layouts the first users compared by hand."""

import dataclasses
from typing import Any

from search_spaces import engines
from search_spaces.miniature import stand_in
from search_spaces.optional import with_installed
from search_spaces.space import Point, Space
from search_spaces.variations import NARROWED, variations
from trainers.spec.layout_axes import CUTTING
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

BLOOM_7B1 = ModelSpec(
    name="bloom-7b1",
    architecture="bloom",
    num_layers=30,
    hidden_size=4096,
    num_heads=32,
    vocab_size=250_880,
)
"""7,069,016,064 parameters. The published file has transformers' defaults for everything else
(https://huggingface.co/bigscience/bloom-7b1/blob/main/config.json).
"""


def bloom7b() -> Space:
    """Returns BLOOM 7b1 at sequence 2048 (`--set seq_len=1024` for the shorter one), AdamW, bf16 over fp32 states."""
    space = Space(
        name="bloom7b",
        summary="BLOOM 7b1, sequence 2048, global batch 512: DDP, FSDP2 and DeepSpeed ZeRO 0-3",
        recipe=Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=512),
        axes={
            # Eager attention and unchunked logits cost BLOOM half of its speed on an H200 (this project).
            "attention": ("flex", "eager"),
            "mlp": ("plain",),
            "compile": ("block", "none"),
            "loss": ("chunked", "plain"),
            # BigScience's grid for 1B3 on V100: layouts that fit without recomputation are about 20 % faster without
            # it.
            "checkpointing": ("none", "selective", "every_2", "full"),
            "grad_sync": ("last", "every"),
            # Weights, gradients and AdamW states in fp32 take 105 GiB per replica: sharded layouts first, replicas
            # last.
            "zero_stage": (3, 1, 2, 0),
            "engine": engines.shards_first(),
        },
        variations=variations("flex", "eager"),
        narrowed={
            **NARROWED,
            **dict.fromkeys((*CUTTING["tokens"], "cp_exchange"), "which gains nothing at sequences of 2,048 tokens"),
        },
        model_parallel={
            "attention": ("flex",),
            "compile": ("block",),
            "loss": ("chunked",),
            "checkpointing": ("none", "full"),
            "grad_sync": ("last",),
            "engine": ("fsdp",),
            "tp": (1, 2, 4, 8),
            "pp": (1, 2, 4, 8),
            "virtual": (1, 2),
        },
        micro_batches=(1,),
        doubling=True,
    )
    space = with_installed(space, "attention", "mlp", "loss")
    return dataclasses.replace(space, miniature=stand_in(space))


_FSDP: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "compile": "block", "grad_sync": "every"}
_ZERO_1: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 1, "compile": "block"}
_ZERO_2: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 2, "compile": "block"}
_ZERO_3: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 3, "compile": "none"}
_KINDS: dict[str, dict[str, Any]] = {
    "fsdp": _FSDP,
    "fsdp_sync_last": {**_FSDP, "grad_sync": "last"},
    "fsdp_kept": {**_FSDP, "zero_stage": 2},
    "fsdp_hybrid_2": {**_FSDP, "dp_shard": 2},
    "fsdp_reshard_2": {**_FSDP, "reshard": 2},
    "fsdp_prefetch_1": {**_FSDP, "prefetch": 1},
    "fsdp_prefetch_2": {**_FSDP, "prefetch": 2},
    "fsdp_prefetch_4": {**_FSDP, "prefetch": 4},
    "fsdp_offload": {**_FSDP, "offload": "all"},
    "fsdp_every_4": {**_FSDP, "checkpointing": "every_4"},
    "fsdp_flash4": {**_FSDP, "attention": "flash4"},
    "fsdp_quack_mlp": {**_FSDP, "mlp": "quack"},
    "fsdp_quack_loss": {**_FSDP, "loss": "quack"},
    "fsdp_budget_50": {**_FSDP, "checkpointing": "budget_50"},
    "zero1": _ZERO_1,
    "zero1_offload": {**_ZERO_1, "offload": "optimizer"},
    "zero2": _ZERO_2,
    "zero2_overlap": {**_ZERO_2, "overlap": "on"},
    "zero2_bucket_256": {**_ZERO_2, "bucket_mib": 256},
    "zero2_offload": {**_ZERO_2, "offload": "optimizer"},
    "zero3": _ZERO_3,
    "zero3_no_overlap": {**_ZERO_3, "overlap": "off"},
    "zero3_prefetch_2": {**_ZERO_3, "prefetch": 2},
    "zero3_offload_optimizer": {**_ZERO_3, "offload": "optimizer"},
    "zero3_offload": {**_ZERO_3, "offload": "all"},
}


def bloom7b_kinds() -> Space:
    """Returns full sharding of BLOOM 7b1 with one change at a time, at micro-batch 2: the effect of each data-parallel
    option, and of activation checkpointing that `bloom7b` does not try. In a search of `bloom7b` each is an axis of
    `--set`, as in `--set prefetch=0,1,2`.
    """
    return Space(
        name="bloom7b_kinds",
        summary="BLOOM 7b1, 25 named points: hybrid sharding, prefetch, offload, buckets, budget, one at a time",
        recipe=bloom7b().recipe,
        axes={"attention": ("flex",), "loss": ("chunked",), **{axis: (value,) for axis, value in _FSDP.items()}},
        points=tuple(Point(name=name, micro_batch=2, layout=layout) for name, layout in _KINDS.items()),
    )
