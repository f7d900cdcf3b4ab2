"""BLOOM 7b1 (https://huggingface.co/bigscience/bloom-7b1): the model whose layouts the first users compared by hand."""

import dataclasses

from search_spaces.miniature import stand_in
from search_spaces.space import Space
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

BLOOM_7B1 = ModelSpec(
    name="bloom-7b1",
    architecture="bloom",
    num_layers=30,
    hidden_size=4096,
    num_heads=32,
    vocab_size=250_880,
)
"""7,069,016,064 parameters."""


def bloom7b() -> Space:
    """Sequence 2048 (`--set seq_len=1024` for the shorter one), AdamW, bf16 compute over fp32 states."""
    space = Space(
        name="bloom7b",
        summary="BLOOM 7b1, sequence 2048, global batch 512: DDP, FSDP2 and DeepSpeed ZeRO 0-3",
        recipe=Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=512),
        axes={
            # Eager attention and all logits at once cost BLOOM half of its speed on an H200 (this project).
            "attention": ("flex", "eager"),
            "compile": ("block", "none"),
            "loss": ("chunked", "plain"),
            # BigScience's grid for 1B3 on V100: what fits without recomputation is about 20 % faster without.
            "checkpointing": ("none", "selective", "every_2", "full"),
            "grad_sync": ("last", "every"),
            # Weights, gradients and AdamW states in fp32 are 105 GiB a replica: sharded layouts first, replicas last.
            "zero_stage": (3, 1, 2, 0),
            "engine": ("fsdp", "deepspeed", "ddp"),
        },
        micro_batches=(1, 2, 4, 8, 16),
    )
    return dataclasses.replace(space, miniature=stand_in(space))
