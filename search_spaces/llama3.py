"""Llama 3 8B (https://huggingface.co/meta-llama/Meta-Llama-3-8B) at its own length and at longer ones."""

import dataclasses
from typing import Any

from search_spaces import engines
from search_spaces.degrees import tried
from search_spaces.miniature import stand_in
from search_spaces.optional import with_installed
from search_spaces.space import Space
from search_spaces.variations import NARROWED, variations
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14_336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128_256,
}
LLAMA3_8B = ModelSpec.from_config(_CONFIG, name="llama3-8b")
"""8,030,261,248 parameters; https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json."""
_LONGER: dict[str, Any] = {
    "max_position_embeddings": 131_072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
LLAMA3_1_8B = ModelSpec.from_config({**_CONFIG, **_LONGER}, name="llama3.1-8b")
"""The same sizes with stretched positions; https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json."""


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
            **tried("cp"),
            "cp_exchange": ("gather", "all_to_all"),
            "virtual": (1, 2),
        },
        micro_batches=(1,),
        doubling=True,
    )
    space = with_installed(space, "attention", "loss")
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))


def llama3_8b_sft() -> Space:
    """Returns Llama 3 8B fine-tuned on chats at sequence 4096: only marked tokens have a loss, and attention stays
    within documents. Without `--data` the stream draws marks and documents.
    """
    base = llama3_8b()
    recipe = dataclasses.replace(
        base.recipe,
        seq_len=4096,
        attention_mask="document",
        trained_tokens="marked",
        learning_rate=2e-5,
        weight_decay=0.0,
    )
    axes = {**base.axes, "attention": ("flex", "sdpa")}
    summary = (
        "Llama 3 8B fine-tuned on chats, sequence 4096, global batch 128: FSDP2 and ZeRO, tensor and context parallel"
    )
    space = dataclasses.replace(base, name="llama3_8b_sft", summary=summary, recipe=recipe, axes=axes)
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))


def llama3_8b_32k() -> Space:
    """Returns Llama 3.1 8B, whose positions allow it, at sequence 32,768: one sequence's activations fill a device, so
    context parallelism comes first.
    """
    base = llama3_8b()
    space = dataclasses.replace(
        base,
        name="llama3_8b_32k",
        summary="Llama 3.1 8B, sequence 32768, global batch 32: context parallel, full sharding, checkpointing",
        recipe=Recipe(model=LLAMA3_1_8B, seq_len=32_768, global_batch=32),
        axes={**base.axes, "checkpointing": ("full", "selective", "none")},
        model_parallel={
            **base.model_parallel,
            "cp": (2, 4, 8, 1),
            "checkpointing": ("none", "selective", "full"),
        },
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))


def llama3_8b_131k() -> Space:
    """Returns Llama 3.1 8B at sequence 131,072, the limit of its positions: a sequence is cut over eight or more ranks,
    or over a model's blocks and widths too.
    """
    base = llama3_8b_32k()
    space = dataclasses.replace(
        base,
        name="llama3_8b_131k",
        summary="Llama 3.1 8B, sequence 131072, global batch 8: context parallel, full sharding, checkpointing",
        recipe=dataclasses.replace(base.recipe, seq_len=131_072, global_batch=8),
        model_parallel={**base.model_parallel, "cp": (8, 4, 2, 1)},
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))
