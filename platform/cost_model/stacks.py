"""What the software of a run did that its row does not state: kinds of loss, kernels, states, by name, words and age.

One place for all that is known of published stacks; the project's own rows state nearly all of it.
"""

import functools
import json
import math
import pathlib
import re
from typing import get_args

from platform.cost_model.engines import ENGINES, costs
from platform.cost_model.features import PREFETCH, ROUNDING, Workload
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.kernels import activation_passes, inner_copies, logit_bytes, loss_kind, pads_vocabulary
from platform.cost_model.rows import Row, words
from trainers import architectures
from trainers.architectures import architecture_of
from trainers.architectures.architecture import Architecture
from trainers.engines import is_path
from trainers.values.layout import Offload
from trainers.values.spec import FlopsConvention, ModelSpec

_FUSED_LOSS = ("mosaicml", "llm-foundry", "fused cross", "fused loss", "fused kernels", "liger")
"""Words of stacks that bring FlashAttention's cross-entropy or one like it (llm-foundry, `fused_crossentropy`)."""
_EAGER = re.compile(r"hf trainer|pytorch eager|eager (?:mode|execution|pytorch)|(?:no|without) (?:torch.)?compile\b")
_SPANS = re.compile(r"checkpoint-num-layers=(\d+)")
_FILE = pathlib.Path(__file__).with_name("stacks.json")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")


@functools.cache
def table() -> dict[str, dict[str, str]]:
    """What holds of stacks, by their data parallelism, each with its source; what is not named does not hold."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


def has(stack: str, fact: str) -> bool:
    """Whether `fact` holds of `stack`; of an engine outside this project none does, since its rows state it all."""
    return fact in table().get(stack, {})


def data_parallelism_of(row: Row) -> str:
    """The engine's name: stated in the project's own tables, else what source, notes and strategy say of the stack."""
    if row.get("engine"):
        if costs(row["engine"]) is None:
            outside = ": --engine names one outside this project" if is_path(row["engine"]) else ""
            raise ValueError(f"engine {row['engine']!r} is not one of {', '.join(ENGINES)}{outside}")
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


def offload_of(row: Row) -> str:
    """What lies on the host, as an axis of the layout: stated, else by the words of notes."""
    if row.get("offload"):
        if row["offload"] not in get_args(Offload):
            raise ValueError(f"offload {row['offload']!r} is not one of {', '.join(get_args(Offload))}")
        return row["offload"]
    text = words(row)
    if "full cpu offload" in text or "param offload y" in text:
        return "all"
    return "optimizer" if "optimizer offload y" in text else "none"


def is_flash(row: Row, cluster: ClusterSpec, engine: str) -> bool:
    """Whether attention is fused: stated, in the row's words, or usual for the device and, on A100, for FSDP."""
    if row.get("flash_attention") or row.get("attention"):
        return row.get("flash_attention") == "yes" or row.get("attention") in ("sdpa", "flex")
    device = cluster.device.name[:4]
    return (
        "flash" in words(row) or (device != "V100" and has(engine, "flash_on_a100")) or device not in ("V100", "A100")
    )


def stack_features(row: Row, work: Workload, cluster: ClusterSpec, tp: float) -> dict[str, float]:
    """The features that the software of a row states in place of this project's engines.

    Every engine of this project reduces and sums in the states' type. Stacks with fused attention are younger than
    DeepSpeed 0.6.
    """
    engine, text, own = data_parallelism_of(row), words(row), bool(row.get("engine"))
    model, flash = work.model, is_flash(row, cluster, engine)
    searched = own and "bare loop" not in text
    _, state_bytes, low_gradient_bytes = precision_of(row)
    whole_sums = has(engine, "sums_in_states_type") or searched
    compiled = (row.get("compile") or "none") != "none"
    fused = compiled if own else not is_eager(text)
    loss = loss_of(row, flash)
    stepwise = work.modules.stepwise_activation if work.modules else None
    forward, backward = activation_passes(stepwise, gated=model.gated, fused=fused)
    given = {
        "vocab": model.vocab_size if own or is_eager(text) else padded(model.vocab_size, tp),
        "sequence_parallel": float(row.get("seq_parallel") == "yes" or (own and tp > 1)),
        "checkpoint_blocks": float(spans[1]) if (spans := _SPANS.search(text)) else 1.0,
        "kept_checkpoints": kept_checkpoints(row, tp),
        "repeats_core_alone": float(has(engine, "repeats_core_alone")),
        "fused": float(fused),
        "fused_softmax": float(fused or has(engine, "fused_softmax")),
        "inner_copies": inner_copies(stepwise, gated=model.gated, fused=fused),
        "activation_forward": forward,
        "activation_backward": backward,
        "logit_bytes": logit_bytes(loss, work.compute_bytes),
        "pads_vocabulary": float(pads_vocabulary(loss) or row.get("loss") == "chunked"),
        "metric_losses": metric_losses(text),
        "rounding": ROUNDING["expandable" if searched else "blocks"],
        "prefetch": PREFETCH["current" if own or flash else "2021"],
        "reduces_whole": float(own or flash),
        "dropout": float(not own and not flash),
        "blocking": float(launches_block(text, cluster)),
        "gradient_bytes": state_bytes if whole_sums else max(low_gradient_bytes, work.compute_bytes),
    }
    if not row.get("attention"):
        given["flash"] = float(flash)
    if "hf trainer" in text:  # the Hugging Face Trainer's "auto" bucket holds hidden_size^2 elements
        given["bucket_bytes"] = model.hidden_size**2 * 2.0
    return given


def loss_of(row: Row, flash: bool) -> str:
    """The kind of loss: torch's own, unless the stack brought another with its fused attention."""
    if row.get("engine"):
        if row.get("loss") == "chunked" and "bare loop" in words(row):
            return "kept"
        return loss_kind(row.get("loss") or "plain", row.get("compile") or "none")
    text = words(row)
    if flash and any(word in text for word in _FUSED_LOSS):
        return "fused"
    return "compiled" if flash and has(data_parallelism_of(row), "fuses_loss_with_flash") else "kept"


def metric_losses(text: str) -> float:
    """`Columns.metric_losses`: llm-foundry's runs log cross-entropy and perplexity of each micro-batch by default.

    Its benchmarks leave that on (`use_train_metrics`, scripts/train/benchmarking/submit_benchmarks.py); Composer's
    trainer takes both anew from the logits after the backward pass (`_eval_train_metrics`).
    """
    return 2.0 if "llm-foundry" in text else 0.0


def modules_of(row: Row) -> Architecture | None:
    """The architecture that the model is called by, where transformers' modules run; None where others do."""
    if not (row.get("engine") or is_eager(words(row))):
        return None
    called = row["model"].lower().replace("-", "")
    return next((architecture_of(name) for name in architectures.names() if name in called), None)


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
