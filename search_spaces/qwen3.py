"""Qwen3 8B (https://huggingface.co/Qwen/Qwen3-8B) at the length at which Llama 3 8B is searched."""

import dataclasses

from search_spaces.llama3 import llama3_8b
from search_spaces.miniature import stand_in
from search_spaces.space import Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

QWEN3_8B = ModelSpec(
    name="qwen3-8b",
    architecture="qwen3",
    num_layers=36,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    ffn_size=12_288,
    vocab_size=151_936,
    max_positions=40_960,
)
"""8,190,735,360 parameters."""


def qwen3_8b() -> Space:
    """Returns Qwen3 8B at sequence 8192 with the axes of `llama3_8b`."""
    space = dataclasses.replace(
        llama3_8b(),
        name="qwen3_8b",
        summary="Qwen3 8B, sequence 8192, global batch 128: FSDP2 and ZeRO, tensor, pipeline and context parallel",
        recipe=Recipe(model=QWEN3_8B, seq_len=8192, global_batch=128),
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))
