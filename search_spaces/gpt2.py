"""GPT-2 (https://huggingface.co/openai-community/gpt2 and gpt2-xl), and eight named ZeRO experiments with it."""

import dataclasses
import itertools

from search_spaces import engines
from search_spaces.miniature import stand_in
from search_spaces.optional import with_installed
from search_spaces.space import Point, Space
from search_spaces.variations import NARROWED, every_axis, variations
from trainers.spec.layout_axes import MODEL_PARALLEL
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

GPT2 = ModelSpec(
    name="gpt2",
    architecture="gpt2",
    num_layers=12,
    hidden_size=768,
    num_heads=12,
    vocab_size=50_257,
    max_positions=1024,
)
"""124,439,808 parameters. The published file has transformers' defaults for everything else
(https://huggingface.co/openai-community/gpt2/blob/main/config.json).
"""

GPT2_XL = ModelSpec(
    name="gpt2-xl",
    architecture="gpt2",
    num_layers=48,
    hidden_size=1600,
    num_heads=25,
    vocab_size=50_257,
    max_positions=1024,
)
"""1,557,611,200 parameters (https://huggingface.co/openai-community/gpt2-xl/blob/main/config.json)."""

GPT2_XXL = dataclasses.replace(GPT2_XL, name="gpt2-xxl", num_layers=96)
"""3.0 B parameters: twice the layers of GPT-2 XL."""


def gpt2() -> Space:
    """Returns GPT-2 124M: 1.9 GiB of fp32 weights, gradients and states fit everywhere, so plain replicas come
    first.
    """
    space = Space(
        name="gpt2",
        summary="GPT-2 124M, sequence 1024, global batch 512: DDP, FSDP2 and DeepSpeed ZeRO 0-3",
        recipe=Recipe(model=GPT2, seq_len=1024, global_batch=512, learning_rate=6e-4),
        axes={
            "attention": ("sdpa", "eager"),
            "mlp": ("plain",),
            "compile": ("model", "block", "none"),
            "loss": ("plain", "chunked"),
            "checkpointing": ("none", "full"),
            "grad_sync": ("last", "every"),
            "zero_stage": (0, 1, 2, 3),
            "engine": engines.replicas_first(),
            "cuda_graphs": ("off", "on"),
        },
        variations=variations("sdpa", "eager"),
        narrowed={
            **NARROWED,
            **dict.fromkeys((*MODEL_PARALLEL, "virtual", "cp_exchange"), "since the whole model fits on a device"),
        },
        micro_batches=(1,),
        doubling=True,
    )
    space = with_installed(space, "attention", "mlp", "loss")
    return dataclasses.replace(space, miniature=stand_in(space))


def gpt2_xl() -> Space:
    """Returns GPT-2 XL: 23.2 GiB of fp32 weights, gradients and states per replica, so sharded layouts come first."""
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
            "engine": engines.shards_first(),
        },
    )
    return dataclasses.replace(space, miniature=stand_in(space))


def gpt2_zero() -> Space:
    """Returns eight named points for one GPU: ZeRO 0-3 in fp16 and fp32, batch 32, length 128. They are the experiments
    of the dist-training-deepspeed report, which ran them on an H100 NVL.
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


def gpt2_xl_compressed() -> Space:
    """Returns DDP with gradients exchanged whole, in bf16 and as PowerSGD's factors, each a recipe with its own winner.
    A step has one micro-step at micro-batch 16 on four devices, so that the exchange matters.
    """
    base = gpt2_xl()
    recipe = dataclasses.replace(base.recipe, global_batch=64)
    return Space(
        name="gpt2_xl_compressed",
        summary="GPT-2 XL 1.6B, sequence 1024, global batch 64: DDP with plain, bf16 and PowerSGD gradients",
        recipe=recipe,
        further_recipes=tuple(
            dataclasses.replace(recipe, compression=name)
            for name in ("bf16", "powersgd_1", "powersgd_4", "powersgd_32")
        ),
        axes={
            "bucket_mib": (0, 100),
            "engine": engines.compressing(),
            "attention": ("sdpa",),
            "compile": ("block",),
            "loss": ("chunked",),
        },
        narrowed=every_axis("which only have to compare the forms of gradients"),
        micro_batches=(4, 8, 16),
        refine=False,
    )


_FSDP = {
    "xl_baseline": (GPT2_XL, {}, (1, 2, 4, 7, 8, 9)),
    "xl_checkpointing": (GPT2_XL, {"checkpointing": "full"}, (8, 16, 32, 64)),
    "xl_prefetch": (GPT2_XL, {"checkpointing": "full", "prefetch": 1}, (64,)),
    "xxl_checkpointing": (GPT2_XXL, {"checkpointing": "full"}, (8, 16, 32)),
}


def gpt2_fsdp() -> Space:
    """Returns the rows of a Lightning report on four V100 of 16 GB: full sharding, length 128, one micro-step a step,
    AMP. With `--device-memory-gib 16` memory ends the rows as in the report; iteration times are comparable.
    """
    return Space(
        name="gpt2_fsdp",
        summary="GPT-2 XL and XXL, length 128, four GPUs: 14 named points of FSDP2 with and without checkpointing",
        recipe=Recipe(model=GPT2_XL, seq_len=128, global_batch=4, compute_precision="fp16"),
        axes={"engine": ("fsdp",), "zero_stage": (3,), "attention": ("eager",)},
        points=tuple(
            Point(
                name=f"{name}_bs{micro_batch}",
                micro_batch=micro_batch,
                recipe={"model": model, "global_batch": 4 * micro_batch},
                layout=layout,
            )
            for name, (model, layout, micro_batches) in _FSDP.items()
            for micro_batch in micro_batches
        ),
        num_workers=4,
    )


def gpt2_128() -> Space:
    """Returns the models and length of `gpt2_fsdp` with larger micro-batches: ladders up to the first out-of-memory
    error, other kernels and prefetch.
    """
    recipe = Recipe(model=GPT2_XL, seq_len=128, global_batch=4096)
    return Space(
        name="gpt2_128",
        summary="GPT-2 XL and XXL, length 128, global batch 4096: FSDP2 with kernels, checkpointing and prefetch",
        recipe=recipe,
        further_recipes=(dataclasses.replace(recipe, model=GPT2_XXL),),
        axes={
            "attention": ("sdpa",),
            "compile": ("block", "none"),
            "loss": ("chunked", "plain"),
            "checkpointing": ("none", "selective", "full"),
            "prefetch": (0, 1),
            "grad_sync": ("last", "every"),
            "zero_stage": (3, 2),
            "engine": ("fsdp",),
        },
        narrowed=every_axis("which are those of a published experiment with FSDP2"),
        micro_batches=(1,),
        doubling=True,
    )
