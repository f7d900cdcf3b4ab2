"""The axes of a `Layout`, each with its declaration; see `trainers.spec.axis`."""

import dataclasses
from typing import Literal

from trainers.spec.axis import axis

GradSync = Literal["every", "last"]
Checkpointing = Literal["none", "selective", "every_4", "every_2", "full", "budget_75", "budget_50", "budget_25"]
Offload = Literal["none", "optimizer", "all"]
Attention = Literal["eager", "sdpa", "flex", "flash4"]
Overlap = Literal["default", "on", "off"]
Mlp = Literal["plain", "quack"]
Loss = Literal["plain", "chunked", "quack"]
Compile = Literal["none", "block", "model"]
Schedule = Literal["1f1b", "interleaved"]
CudaGraphs = Literal["off", "on"]


def activation_budget(checkpointing: str) -> float:
    """Returns the share of its activations that compiled code may keep, for a value of `checkpointing`."""
    name, _, percent = checkpointing.partition("_")
    return int(percent) / 100 if name == "budget" else 1.0


def _checkpointing_words(value: str) -> str:
    if (share := activation_budget(value)) < 1:
        return f"{share:.0%} of activations kept"
    word = {"every_4": "every fourth", "every_2": "every second"}.get(value, value)
    return f"{word} block checkpointed" if word != value else f"{word} checkpointing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutAxes:
    """The fields of a `Layout`, in the order of labels and tables."""

    engine: str = axis(
        column="engine",
        about="The engine that trains: one of this project by its name, or another by the import path of its rules.",
    )
    zero_stage: int = axis(
        0,
        column="sharding",
        parameter=False,
        lighter=(0, 1, 2, 3),
        about="States sharded over `dp_shard` (arXiv 1910.02054): 0 nothing, 1 optimizer states, 2 gradients too, 3"
        " parameters too. FSDP2's stage 3 reshards parameters after the forward pass.",
    )
    dp_replicate: int = axis(
        1,
        column="degrees",
        least=1,
        of_number="no memory",
        about="Data-parallel groups that each hold the whole model.",
    )
    dp_shard: int = axis(
        1,
        column="degrees",
        least=1,
        parameter=False,
        of_number="lighter",
        about="Data-parallel ranks that share one copy of what is sharded.",
    )
    tp: int = axis(1, label="tp {}", column="degrees", read_back="if known", least=1, about="Tensor-parallel degree.")
    pp: int = axis(1, label="pp {}", column="degrees", read_back="if known", least=1, about="Pipeline stages.")
    cp: int = axis(1, label="cp {}", column="degrees", read_back="if known", least=1, about="Context-parallel degree.")
    schedule: Schedule = axis(
        "1f1b",
        later=True,
        label="{}",
        column="options",
        note="schedule {}",
        read_back="if set",
        of_some_engines=True,
        about="Order of a pipeline's micro-batches: one forward, one backward, or that over virtual stages of each"
        " rank (arXiv 2104.04473, section 2.2).",
    )
    virtual: int = axis(
        1,
        later=True,
        label="virtual {}",
        table="vp",
        column="degrees",
        read_back="if set",
        of_some_engines=True,
        least=1,
        about="Virtual stages that a rank of an interleaved pipeline holds; the bubble is as many times smaller.",
    )
    grad_sync: GradSync = axis(
        "last",
        label="sync {}",
        column="options",
        lighter=("last", "every"),
        about="Gradients are reduced after every micro-step, or after a step's last one.",
    )
    checkpointing: Checkpointing = axis(
        "none",
        label=_checkpointing_words,
        short="ckpt {}",
        table="activation_ckpt",
        column="checkpointing",
        lighter=("none", "selective", "full"),
        surely_lighter=True,
        about="Activations computed again in the backward pass: none, all but products and attention, all of every"
        " fourth, every second or every block, or what a compiler chooses to keep that share (per cent).",
    )
    offload: Offload = axis(
        "none",
        label="offload {}",
        column="options",
        lighter=("none", "optimizer", "all"),
        surely_lighter=True,
        about="States held in host memory: nothing, the optimizer's states, or parameters too.",
    )
    bucket_mib: int = axis(
        0,
        label="buckets {} MiB",
        column="options",
        note="buckets of {} MiB",
        read_back="if set",
        least=0,
        about="MiB of a gradient bucket; 0 for the engine's own default.",
    )
    overlap: Overlap = axis(
        "default",
        later=True,
        label="overlap {}",
        column="options",
        note="overlap {}",
        read_back="if set",
        of_some_engines=True,
        of_the_stack=True,
        about="Whether DeepSpeed communicates beside its computing; by default stage 3 alone does.",
    )
    prefetch: int = axis(
        0,
        label="prefetch {}",
        column="options",
        note="prefetch {}",
        read_back="if set",
        of_some_engines=True,
        least=0,
        counts_blocks=True,
        about="Blocks gathered ahead; 0 for the engine's own choice.",
    )
    reshard: int = axis(
        0,
        later=True,
        label="reshard to {}",
        column="options",
        note="reshard to {}",
        read_back="if known",
        of_some_engines=True,
        least=0,
        about="Ranks that hold a block's parameters between its two passes; 0 for all of `dp_shard`.",
    )
    attention: Attention = axis(
        "eager",
        label="{}",
        always_shown=True,
        column="kernels",
        about="The kernels that compute attention: transformers' own, torch's scaled_dot_product_attention,"
        " FlexAttention, or FlexAttention by FlashAttention-4's kernels.",
    )
    mlp: Mlp = axis(
        "plain",
        later=True,
        label="{} MLP",
        column="kernels",
        note="{} MLP",
        read_back="if known",
        about="Feed-forward blocks of transformers, or with GELU inside their products (quack-kernels).",
    )
    loss: Loss = axis(
        "plain",
        label="{} loss",
        column="kernels",
        about="Loss over all logits at once, or over some rows at a time with their gradients, by compiled code or"
        " quack-kernels.",
    )
    compile: Compile = axis(
        "none",
        label="compile {}",
        column="kernels",
        about="Code that torch.compile is given: none, each block, or the whole model with its loss.",
    )
    cuda_graphs: CudaGraphs = axis(
        "off",
        later=True,
        label="CUDA graphs",
        column="kernels",
        note="CUDA graphs",
        read_back="if set",
        of_some_engines=True,
        about="Micro-steps launched kernel by kernel, or each as one CUDA graph.",
    )
