"""What the software of a run did that its row does not state: kinds of loss, kernels, states, by name, words and age.

One place for all that is known of published stacks; the project's own rows state nearly all of it.
"""

import math
import re
from typing import get_args

from platform.cost_model.columns import ENGINES, OFFLOAD
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.rows import Row, words
from platform.cost_model.values import inner_copies, loss_kind
from trainers.spec import FlopsConvention, ModelSpec

_FUSED_LOSS = ("mosaicml", "llm-foundry", "fused cross", "fused loss", "fused kernels", "liger")
"""Words of stacks that bring FlashAttention's cross-entropy or one like it (llm-foundry, `fused_crossentropy`)."""
_EAGER = re.compile(r"hf trainer|pytorch eager|eager (?:mode|execution|pytorch)|(?:no|without) (?:torch.)?compile\b")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")


def stack_of(row: Row) -> str:
    """The engine: stated in the project's own tables, else what the words of source and notes and the strategy say."""
    if row.get("engine"):
        if row["engine"] not in ENGINES:
            raise ValueError(f"engine {row['engine']!r} is not one of {', '.join(ENGINES)}")
        return row["engine"]
    text, strategy = words(row), row["strategy"]
    if strategy not in STRATEGIES:
        raise ValueError(
            f"strategy {strategy!r} is not one of {', '.join(STRATEGIES)}" if strategy else "strategy not stated"
        )
    if strategy in ("fsdp", "hsdp") or "fsdp" in text:
        return "fsdp"
    parallel = row.get("tp", "1") not in ("", "1") or row.get("pp", "1") not in ("", "1")
    if "bigscience" in text:  # Megatron-DeepSpeed, but for the runs that say Megatron-LM alone or DeepSpeed off
        plain = strategy == "ddp" and ("megatron-lm" in text or "ds=n" in text)
        return "megatron" if plain else "deepspeed"
    if strategy == "zero3" or (strategy == "zero2" and not parallel):
        return "deepspeed"
    if parallel or "megatron" in text:
        return "megatron"
    return "ddp" if strategy == "ddp" and "deepspeed" not in text else "deepspeed"


def precision_of(row: Row) -> tuple[str, float, float]:
    """(precision of products, bytes of master states, bytes of a summed gradient)."""
    text = row["precision"].lower()
    compute = next((name for name in ("fp8", "bf16", "fp16", "tf32", "fp32") if name in text), None)
    if compute is None:
        raise ValueError(f"precision {row['precision']!r} is not known" if text else "precision not stated")
    state = 2.0 if row.get("state_precision") == "bf16" else 4.0
    return compute, state, 4.0 if "fp32 grad" in text else 2.0


def offload_of(row: Row) -> int:
    if row.get("offload"):
        return OFFLOAD.index(row["offload"])
    text = words(row)
    if "full cpu offload" in text or "param offload y" in text:
        return 2
    return int("optimizer offload y" in text)


def loss_of(row: Row, flash: bool) -> str:
    """The kind of loss: torch's own, unless the stack brought another with its fused attention."""
    if row.get("engine"):
        if row.get("loss") == "chunked" and "bare loop" in words(row):
            return "kept"
        return loss_kind(row.get("loss") == "chunked", row.get("compile") or "none")
    text = words(row)
    if flash and any(word in text for word in _FUSED_LOSS):
        return "fused"
    return "compiled" if flash and stack_of(row) == "megatron" else "kept"


def metric_losses(text: str) -> float:
    """`Columns.metric_losses`: llm-foundry's runs log cross-entropy and perplexity of each micro-batch by default.

    Its benchmarks leave that on (`use_train_metrics`, scripts/train/benchmarking/submit_benchmarks.py); Composer's
    trainer takes both anew from the logits after the backward pass (`_eval_train_metrics`).
    """
    return 2.0 if "llm-foundry" in text else 0.0


def inner_copies_of(row: Row, model: ModelSpec, fused: bool) -> float:
    """As `inner_copies`; only where transformers' own model runs is its GELU computed step by step."""
    return inner_copies("llama" if model.gated else own_model(row), fused)


def own_model(row: Row) -> str:
    """The architecture where transformers' own model runs that computes its activation step by step, else ""."""
    if not (row.get("engine") or is_eager(words(row))):
        return ""
    return next((name for name in ("gpt2", "bloom") if name in row["model"].lower().replace("-", "")), "")


def kept_checkpoints(row: Row, tp: float) -> float:
    """Share of `Columns.kept_checkpoints`: inputs may be cut over the tensor-parallel ranks, or lie on the host.

    The unreleased ZeRO-3 branch of BigScience's first table kept them on the host unless it says otherwise: 48
    sequences of 64 blocks would fill 51 GB of a 32 GB device.
    """
    text = words(row)
    if row["activation_ckpt"] == "selective" and "torchtitan" in text:
        return 0.5  # it saves every second product (`activation_checkpoint.py`)
    on_host = "full cpu offload" in text or "zero-3 old branch" in text or "pa_cpu=y" in text
    if on_host and "no checkpoint-in-cpu" not in text and "pa_cpu=n" not in text:
        return 0.0
    partitioned = "partition-activations" in text and "no partition-activations" not in text
    return 1 / tp if partitioned or on_host else 1.0


def is_eager(text: str) -> bool:
    """Whether the row says that its stack runs transformers or PyTorch as they come, without fused kernels."""
    return _EAGER.search(text) is not None


def padded(vocab_size: int, tp: float) -> float:
    """Words with those that Megatron-LM, and what is built on it, adds (`--make-vocab-size-divisible-by 128`)."""
    return vocab_size if vocab_size % 8 == 0 else math.ceil(vocab_size / (128 * tp)) * 128 * tp


def launches_block(text: str, cluster: ClusterSpec) -> bool:
    """Whether CUDA_LAUNCH_BLOCKING=1 was set: stated, or on Jean Zay's A100 nodes, where BigScience's large runs hung
    without it (train/tr11-176B-ml/tr11-176B-ml.slurm: "do not remove").
    """
    return "cuda_launch_blocking=1" in text or ("bigscience" in text and cluster.name == "jean-zay-a100")


def moments_of(row: Row, model: ModelSpec, pp: float) -> float:
    """fp32 states a parameter beside the master copy, on the first stage.

    The 8-bit optimizer holds two of a byte each, but the embedding's in fp32 (bitsandbytes, `StableEmbedding`).
    """
    if row.get("optimizer") == "adafactor":
        return 0.0
    if "8-bit optimizer" not in words(row):
        return 2.0
    blocks = model.num_layers * model.parameters_per_layer / pp
    return 0.5 + 1.5 * model.embedding_parameters / (model.embedding_parameters + blocks)


def convention_of(row: Row) -> FlopsConvention | None:
    """How the row counts the FLOPs of `tflops_per_gpu`, where its notes say so."""
    text = words(row)
    named = next((name for name in get_args(FlopsConvention) if f"flops by {name}" in text), None)
    if named is not None:
        return named
    if "96*b*s*l*h^2" in text or "exact megatron formula" in text:
        return "megatron_hardware"
    if "8*n*tokens" in text or "4*2*n*tokens" in text:
        return "8n"
    if "3*2*n*tokens" in text:
        return "6n"
    if "hardware flops" in text:
        return "megatron_hardware"
    return "megatron_model" if "model flops" in text else None
