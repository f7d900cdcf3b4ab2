"""Qwen3 8B (https://huggingface.co/Qwen/Qwen3-8B) at the length at which Llama 3 8B is searched."""

import dataclasses

from search_spaces.llama3 import llama3_8b
from search_spaces.miniature import stand_in
from search_spaces.space import Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

QWEN3_8B = ModelSpec.from_config(
    {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 12_288,
        "max_position_embeddings": 40_960,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151_936,
    },
    name="qwen3-8b",
)
"""8,190,735,360 parameters; https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json."""


def qwen3_8b() -> Space:
    """Returns Qwen3 8B at sequence 8192 with the axes of `llama3_8b`."""
    space = dataclasses.replace(
        llama3_8b(),
        name="qwen3_8b",
        summary="Qwen3 8B, sequence 8192, global batch 128: FSDP2 and ZeRO, tensor, pipeline and context parallel",
        recipe=Recipe(model=QWEN3_8B, seq_len=8192, global_batch=128),
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))
