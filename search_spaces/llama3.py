"""Llama 3 8B (https://huggingface.co/meta-llama/Meta-Llama-3-8B) at its own length, and at one that fills a device."""

import dataclasses

from search_spaces import engines
from search_spaces.miniature import stand_in
from search_spaces.optional import with_installed
from search_spaces.space import Space
from search_spaces.variations import NARROWED, variations
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

LLAMA3_8B = ModelSpec(
    name="llama3-8b",
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    ffn_size=14_336,
    vocab_size=128_256,
    max_positions=131_072,
)
"""8,030,261,248 parameters."""


def llama3_8b() -> Space:
    """Returns Llama 3 8B at sequence 8192, as it was trained."""
    space = Space(
        name="llama3_8b",
        summary="Llama 3 8B, sequence 8192, global batch 128: FSDP2 and ZeRO, tensor, pipeline and context parallel",
        recipe=Recipe(model=LLAMA3_8B, seq_len=8192, global_batch=128),
        axes={
            "attention": ("sdpa", "flex"),
            "compile": ("block", "none"),
            "loss": ("chunked", "plain"),
            "checkpointing": ("none", "selective", "full"),
            "grad_sync": ("last", "every"),
            "zero_stage": (3, 2, 1),
            "engine": engines.sharding(),
        },
        variations=variations("sdpa", "flex"),
        narrowed={
            **NARROWED,
            **dict.fromkeys(("engine", "zero_stage"), "without whole replicas, whose states take 120 GiB"),
        },
        model_parallel={
            "attention": ("sdpa", "flex"),
            "compile": ("block",),
            "loss": ("chunked",),
            "checkpointing": ("none", "full"),
            "grad_sync": ("last",),
            "engine": ("fsdp",),
            "cp": (1, 2, 4, 8),
            "tp": (1, 2, 4, 8),
            "pp": (1, 2, 4, 8),
            "virtual": (1, 2),
        },
        micro_batches=(1,),
        doubling=True,
    )
    space = with_installed(space, "attention", "loss")
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))


def llama3_8b_32k() -> Space:
    """Returns Llama 3 8B at sequence 32,768: one sequence's activations fill a device, so cp comes first."""
    base = llama3_8b()
    space = dataclasses.replace(
        base,
        name="llama3_8b_32k",
        summary="Llama 3 8B, sequence 32768, global batch 32: context parallel beside full sharding and checkpointing",
        recipe=dataclasses.replace(base.recipe, seq_len=32_768, global_batch=32),
        axes={**base.axes, "checkpointing": ("full", "selective", "none")},
        model_parallel={
            **base.model_parallel,
            "cp": (2, 4, 8, 1),
            "checkpointing": ("none", "selective", "full"),
        },
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))
