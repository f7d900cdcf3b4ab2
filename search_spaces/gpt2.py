"""GPT-2 (https://huggingface.co/openai-community/gpt2 and gpt2-xl), and eight ZeRO experiments on it by name."""

import dataclasses
import itertools

from search_spaces.miniature import stand_in
from search_spaces.space import Point, Space
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

GPT2 = ModelSpec(
    name="gpt2",
    architecture="gpt2",
    num_layers=12,
    hidden_size=768,
    num_heads=12,
    vocab_size=50_257,
    max_positions=1024,
)
"""124,439,808 parameters."""

GPT2_XL = ModelSpec(
    name="gpt2-xl",
    architecture="gpt2",
    num_layers=48,
    hidden_size=1600,
    num_heads=25,
    vocab_size=50_257,
    max_positions=1024,
)
"""1,557,611,200 parameters."""


def gpt2() -> Space:
    """GPT-2 124M: 1.9 GiB of fp32 weights, gradients and states fit everywhere, so plain replicas come first."""
    space = Space(
        name="gpt2",
        summary="GPT-2 124M, sequence 1024, global batch 512: DDP, FSDP2 and DeepSpeed ZeRO 0-3",
        recipe=Recipe(model=GPT2, seq_len=1024, global_batch=512, learning_rate=6e-4),
        axes={
            "attention": ("sdpa", "eager"),
            "compile": ("model", "block", "none"),
            "loss": ("plain", "chunked"),
            "checkpointing": ("none", "full"),
            "grad_sync": ("last", "every"),
            "zero_stage": (0, 1, 2, 3),
            "engine": ("ddp", "fsdp", "deepspeed"),
        },
        micro_batches=(4, 8, 16, 32, 64),
    )
    return dataclasses.replace(space, miniature=stand_in(space))


def gpt2_xl() -> Space:
    """GPT-2 XL: 23.2 GiB of fp32 weights, gradients and states a replica, so sharded layouts come first."""
    base = gpt2()
    space = dataclasses.replace(
        base,
        name="gpt2_xl",
        summary="GPT-2 XL 1.6B, sequence 1024, global batch 512: DDP, FSDP2 and DeepSpeed ZeRO 0-3",
        recipe=Recipe(model=GPT2_XL, seq_len=1024, global_batch=512),
        axes={
            **base.axes,
            "compile": ("block", "none"),
            "checkpointing": ("none", "selective", "full"),
            "zero_stage": (3, 1, 2, 0),
            "engine": ("fsdp", "deepspeed", "ddp"),
        },
        micro_batches=(1, 2, 4, 8, 16, 32),
    )
    return dataclasses.replace(space, miniature=stand_in(space))


def gpt2_zero() -> Space:
    """Eight named points of one GPU: ZeRO 0-3 in fp16 and fp32, batch 32, length 128.

    They are the experiments of the dist-training-deepspeed report, which ran them on an H100 NVL.
    """
    return Space(
        name="gpt2_zero",
        summary="GPT-2 124M, length 128, batch 32, one GPU: eight named points, DeepSpeed ZeRO 0-3 in fp16 and fp32",
        recipe=Recipe(model=GPT2, seq_len=128, global_batch=32),
        axes={"engine": ("deepspeed",), "attention": ("sdpa",)},
        points=tuple(
            Point(
                name=f"zs{stage}_{precision}_gpus1_bs32_sl128",
                micro_batch=32,
                recipe={"compute_precision": precision},
                layout={"zero_stage": stage},
            )
            for stage, precision in itertools.product((0, 1, 2, 3), ("fp16", "fp32"))
        ),
        num_workers=1,
    )
