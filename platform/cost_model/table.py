"""Measured tables: one row a run, in the project's table header; read into columns, or left out with the reason.

Besides the project's own tables the reader takes published ones: what a row does not state is taken for what its stack
did at the time, in one place (`_stack`, `_values`), and a row that contradicts itself is left out.
"""

import csv
import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Mapping
from typing import get_args

from platform.cost_model.columns import (
    CHECKPOINTING,
    ENGINES,
    OFFLOAD,
    ROUNDING,
    activation_passes,
    checkpointing_values,
    cluster_values,
    default_bucket_bytes,
    flash_share,
    inner_copies,
    logit_bytes,
    loss_kind,
    model_values,
)
from platform.cost_model.compression import compression_values
from platform.cost_model.hardware import ClusterSpec, cluster_of, find_device_by_memory, find_node
from platform.cost_model.memory import outside_gib
from platform.errors import InputError
from trainers.spec import FlopsConvention, ModelSpec

Row = Mapping[str, str]

NEEDED = (
    "model", "layers", "hidden", "heads", "vocab", "seq_len", "gpu", "gpus", "tp", "pp", "strategy", "micro_batch",
    "activation_ckpt", "precision", "status",
)  # fmt: skip
_SPANS = re.compile(r"checkpoint-num-layers=(\d+)")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One row that could be interpreted."""

    row: Row
    cell: tuple[str, str, str, str, str]
    """(model, gpu, gpus, seq_len, global_batch): runs of a cell compete."""
    model: ModelSpec
    cluster: ClusterSpec
    precision: str
    values: Mapping[str, float]
    """One row of `Columns`."""
    step_time_s: float | None
    peak_memory_gib: float | None
    """Published figures are nvidia-smi's, whose GB are 2**30 bytes."""
    peak_is_allocated: bool
    """Whether the peak is the allocator's own figure, or the whole device's."""
    out_of_memory: bool
    num_merged: int = 1


def read_rows(path: pathlib.Path) -> list[Row]:
    """The rows of a table.

    Raises:
        InputError: no such file, or it lacks columns that the model needs.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            header = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read table {path}: {error}") from None
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise InputError(f"table {path} lacks the columns {', '.join(missing)}; docs/table.md has the whole header")
    return [{name: (value or "").strip() for name, value in row.items() if name is not None} for row in rows]


def _number(row: Row, name: str) -> float | None:
    text = row.get(name, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, not a number") from None


def _wanted(row: Row, name: str) -> float:
    value = _number(row, name)
    if value is None:
        raise ValueError(f"{name} not stated")
    if value < 1:
        raise ValueError(f"{name} is {value:g}, below 1")
    return value


def _text(row: Row) -> str:
    return " ".join(row.get(name, "") for name in ("source", "notes")).lower()


def _model(row: Row) -> ModelSpec:
    """The model of a row. Gate and tied table are not columns: of their four cases, the one nearest to `params_b`."""
    seq_len, hidden = int(_wanted(row, "seq_len")), int(_wanted(row, "hidden"))
    stated = _number(row, "params_b")
    cases: list[ModelSpec] = []
    for gated, tied in itertools.product((False, True), (True, False)):
        cases.append(
            ModelSpec(
                name=row["model"],
                architecture="llama" if gated else "gpt2",
                num_layers=int(_wanted(row, "layers")),
                hidden_size=hidden,
                num_heads=int(_wanted(row, "heads")),
                num_kv_heads=int(_number(row, "kv_heads") or 0),
                ffn_size=int(_number(row, "ffn") or 0),
                vocab_size=int(_wanted(row, "vocab")),
                max_positions=seq_len,
                tied_embeddings=tied,
            )
        )
    if stated is None:
        return cases[0]
    # A plain GPT with a tied table unless another case is clearly nearer.
    errors = [abs(case.num_parameters / 1e9 / stated - 1) for case in cases]
    best = min(range(4), key=lambda index: errors[index])
    chosen = cases[best] if errors[0] > errors[best] + 0.02 else cases[0]
    if abs(chosen.num_parameters / 1e9 / stated - 1) > 0.15:
        raise ValueError(f"{chosen.num_parameters / 1e9:.2f}B parameters by its shape, {stated:g}B stated")
    return chosen


def _stack(row: Row) -> str:
    """The engine: stated in the project's own tables, else what the words of source and notes and the strategy say."""
    if row.get("engine"):
        if row["engine"] not in ENGINES:
            raise ValueError(f"engine {row['engine']!r} is not one of {', '.join(ENGINES)}")
        return row["engine"]
    text, strategy = _text(row), row["strategy"]
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


def _precision(row: Row) -> tuple[str, float, float]:
    """(precision of products, bytes of master states, bytes of a summed gradient)."""
    text = row["precision"].lower()
    compute = next((name for name in ("fp8", "bf16", "fp16", "tf32", "fp32") if name in text), None)
    if compute is None:
        raise ValueError(f"precision {row['precision']!r} is not known" if text else "precision not stated")
    state = 2.0 if row.get("state_precision") == "bf16" else 4.0
    return compute, state, 4.0 if "fp32 grad" in text else 2.0


def _cluster(row: Row) -> ClusterSpec:
    gpus = int(_wanted(row, "gpus"))
    own = bool(row.get("engine"))
    device = find_device_by_memory(row["gpu"], None if own else _number(row, "gpu_mem_gb"))
    usual = cluster_of(device, 1, 8)
    nodes = int(_number(row, "nodes") or 0) or max(1, -(-gpus // usual.devices_per_node))
    if gpus % nodes:
        raise ValueError(f"{gpus} GPUs do not divide over {nodes} nodes")
    text = _text(row)
    stated = re.search(r"(\d+) ?gbps (?:node|inter)", text)
    return cluster_of(
        device,
        nodes,
        gpus // nodes,
        node=find_node(text, device.name),
        inter_gb_per_s=float(stated[1]) / 8 if stated else 0.0,
    )


def _degrees(row: Row) -> tuple[float, float, float, float]:
    """(tp, pp, cp, dp) that multiply to the GPUs.

    Raises:
        ValueError: they do not.
    """
    gpus = _wanted(row, "gpus")
    tp, pp, cp = _wanted(row, "tp"), _wanted(row, "pp"), _number(row, "cp") or 1.0
    dp = _number(row, "dp") or gpus / (tp * pp * cp)
    if tp * pp * cp * dp != gpus:
        raise ValueError(f"tp {tp:g} x pp {pp:g} x cp {cp:g} x dp {dp:g} is not {gpus:g} GPUs")
    return tp, pp, cp, dp


def _batch(row: Row, dp: float) -> tuple[float, float]:
    """(micro_batch, grad_accum) that multiply, with the data-parallel degree, to the global batch.

    Raises:
        ValueError: they do not.
    """
    micro_batch = _wanted(row, "micro_batch")
    grad_accum, whole = _number(row, "grad_accum"), _number(row, "global_batch")
    if grad_accum is None:
        if whole is None:
            raise ValueError("neither grad_accum nor global_batch stated")
        grad_accum = whole / (micro_batch * dp)
    if grad_accum < 1 or grad_accum % 1 or (whole is not None and micro_batch * grad_accum * dp != whole):
        raise ValueError(
            f"micro_batch {micro_batch:g} x grad_accum {grad_accum:g} x dp {dp:g} is not global_batch {whole:g}"
        )
    return micro_batch, grad_accum


def _virtual_stages(row: Row, model: ModelSpec, pp: float) -> float:
    """Stated, or, where only an interleaved schedule is spoken of, the least cut above one that divides the blocks."""
    stated = _number(row, "vp")
    if stated:
        return stated
    if pp > 1 and "interleav" in _text(row) and model.num_layers % pp == 0:
        per_stage = int(model.num_layers // pp)
        return float(next((cut for cut in range(2, per_stage + 1) if per_stage % cut == 0), 1))
    return 1.0


def _offload(row: Row) -> int:
    if row.get("offload"):
        return OFFLOAD.index(row["offload"])
    text = _text(row)
    if "full cpu offload" in text or "param offload y" in text:
        return 2
    return int("optimizer offload y" in text)


def _loss(row: Row, flash: bool) -> str:
    """The kind of loss: stacks with fused attention brought a fused loss with it."""
    if row.get("engine"):
        if row.get("loss") == "chunked" and "bare loop" in _text(row):
            return "kept"
        return loss_kind(row.get("loss") == "chunked", row.get("compile") or "none")
    return "fused" if flash else "kept"


def _inner_copies(row: Row, model: ModelSpec, fused: bool) -> float:
    """As `inner_copies`; only where transformers' own model runs is its GELU computed step by step."""
    return inner_copies("llama" if model.gated else _own_model(row), fused)


def _own_model(row: Row) -> str:
    """The architecture where transformers' own model runs that computes its activation step by step, else ""."""
    if not (row.get("engine") or _is_eager(_text(row))):
        return ""
    return next((name for name in ("gpt2", "bloom") if name in row["model"].lower().replace("-", "")), "")


def _kept_checkpoints(row: Row, tp: float) -> float:
    """Where checkpointed inputs lie: cut over the tensor-parallel ranks, or on the host.

    The unreleased ZeRO-3 branch of BigScience's first table kept them on the host unless it says otherwise: 48
    sequences of 64 blocks would fill 51 GB of a 32 GB device.
    """
    text = _text(row)
    on_host = "full cpu offload" in text or "zero-3 old branch" in text or "pa_cpu=y" in text
    if on_host and "no checkpoint-in-cpu" not in text and "pa_cpu=n" not in text:
        return 0.0
    partitioned = "partition-activations" in text and "no partition-activations" not in text
    return 1 / tp if partitioned or on_host else 1.0


def _is_eager(text: str) -> bool:
    """Whether the row says that its stack runs transformers or PyTorch as they come, without fused kernels."""
    return "hf trainer" in text or "pytorch eager" in text


def _padded(vocab_size: int, tp: float) -> float:
    """Words with those that Megatron-LM, and what is built on it, adds (`--make-vocab-size-divisible-by 128`)."""
    return vocab_size if vocab_size % 8 == 0 else math.ceil(vocab_size / (128 * tp)) * 128 * tp


def _launches_block(text: str, cluster: ClusterSpec) -> bool:
    """Whether CUDA_LAUNCH_BLOCKING=1 was set: stated, or on Jean Zay's A100 nodes, where BigScience's large runs hung
    without it (train/tr11-176B-ml/tr11-176B-ml.slurm: "do not remove").
    """
    return "cuda_launch_blocking=1" in text or ("bigscience" in text and cluster.name == "jean-zay-a100")


def _moments(row: Row, model: ModelSpec, pp: float) -> float:
    """fp32 states a parameter beside the master copy, on the first stage.

    The 8-bit optimizer holds two of a byte each, but the embedding's in fp32 (bitsandbytes, `StableEmbedding`).
    """
    if row.get("optimizer") == "adafactor":
        return 0.0
    if "8-bit optimizer" not in _text(row):
        return 2.0
    blocks = model.num_layers * model.parameters_per_layer / pp
    return 0.5 + 1.5 * model.embedding_parameters / (model.embedding_parameters + blocks)


def _values(row: Row, model: ModelSpec, cluster: ClusterSpec) -> dict[str, float]:
    tp, pp, cp, dp = _degrees(row)
    micro_batch, grad_accum = _batch(row, dp)
    precision, state_bytes, low_gradient_bytes = _precision(row)
    compute_bytes = 2.0 if precision in ("bf16", "fp16", "fp8") else 4.0
    engine, strategy, text = _stack(row), row["strategy"], _text(row)
    own = bool(row.get("engine"))
    checkpointing = row["activation_ckpt"] or ("none" if own else "")
    if checkpointing not in CHECKPOINTING:
        raise ValueError(
            f"activation_ckpt {checkpointing!r} is not known" if checkpointing else "activation_ckpt not stated"
        )
    flash = row.get("flash_attention") == "yes" or row.get("attention") in ("sdpa", "flex")
    if not row.get("flash_attention") and not row.get("attention"):
        # Not stated: said in words, or usual for the device's generation and, on A100, for FSDP.
        flash = "flash" in text or (cluster.device.name[:4] != "V100" and engine == "fsdp")
        flash = flash or cluster.device.name[:4] not in ("V100", "A100")
    stage = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}[strategy]
    compiled = row.get("compile", "none") not in ("", "none")
    # Every engine of ours reduces and sums in the states' type; DeepSpeed and Megatron-LM by themselves in 16 bits.
    searched = own and "bare loop" not in text
    whole_sums = engine in ("ddp", "fsdp") or searched
    gradient_bytes = state_bytes if whole_sums else max(low_gradient_bytes, 2.0 if compute_bytes == 2 else 4.0)
    fused = compiled if own else not _is_eager(text)
    shard = dp if stage or engine == "fsdp" else 1.0
    if strategy == "hsdp":
        shard = min(dp, cluster.devices_per_node)
    return {
        **model_values(model),
        **cluster_values(cluster, precision),
        "vocab": model.vocab_size if own or _is_eager(text) else _padded(model.vocab_size, tp),
        "seq_len": _wanted(row, "seq_len"),
        "global_batch": micro_batch * grad_accum * dp,
        "engine": ENGINES.index(engine),
        "zero_stage": stage,
        "shard": shard,
        "overlaps": float(stage == 3),
        "prefetch": 0,
        "reshard": shard,
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "virtual_stages": _virtual_stages(row, model, pp),
        "sequence_parallel": float(row.get("seq_parallel") == "yes" or (own and tp > 1)),
        "sync_every": float(row.get("grad_sync", "every" if engine == "fsdp" else "") == "every"),
        **checkpointing_values(checkpointing),
        "offload": _offload(row),
        # The Hugging Face Trainer's "auto" bucket holds hidden_size^2 elements.
        "bucket_bytes": model.hidden_size**2 * 2.0
        if "hf trainer" in text
        else default_bucket_bytes(engine, state_bytes, compute_bytes),
        "checkpoint_blocks": float(spans[1]) if (spans := _SPANS.search(text)) else 1.0,
        "kept_checkpoints": _kept_checkpoints(row, tp),
        "flash": flash_share(_own_model(row) or "", row["attention"]) if row.get("attention") else float(flash),
        "wide_softmax": float(_own_model(row) != "gpt2"),
        "fused": float(fused),
        "inner_copies": _inner_copies(row, model, fused),
        **activation_passes(_own_model(row), bool(model.gated), fused),
        "logit_bytes": logit_bytes(_loss(row, flash), compute_bytes),
        "chunked_loss": float(row.get("loss") == "chunked"),
        "rounding": ROUNDING["expandable" if searched else "blocks"],
        "dropout": float(not own and not flash),
        "blocking": float(_launches_block(text, cluster)),
        "micro_batch": micro_batch,
        "grad_accum": grad_accum,
        "compute_bytes": compute_bytes,
        "state_bytes": state_bytes,
        "moments": _moments(row, model, pp),
        "gradient_bytes": gradient_bytes,
        **compression_values(model, row.get("compression", "")),
    }


def _convention(row: Row) -> FlopsConvention | None:
    """How the row counts the FLOPs of `tflops_per_gpu`, where its notes say so."""
    text = _text(row)
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


def _step_time_s(row: Row, values: Mapping[str, float], model: ModelSpec) -> float | None:
    """Seconds of a step: printed, or from tokens/s, or from TFLOP/s where the FLOP count is named."""
    printed, rate, tflops = (_number(row, name) for name in ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"))
    if printed:
        return printed
    tokens = values["global_batch"] * values["seq_len"]
    gpus = _wanted(row, "gpus")
    if rate:
        return tokens / gpus / rate
    convention = _convention(row)
    if tflops and convention:
        return model.flops_per_token(int(values["seq_len"]), convention) * tokens / gpus / (tflops * 1e12)
    return None


def interpret(row: Row) -> Run:
    """The run of a row.

    Raises:
        ValueError: what is missing, unknown or contradicts itself.
    """
    if row["status"] not in ("ok", "oom", "crash_or_oom"):
        raise ValueError(f"status {row['status'] or 'not stated'}")
    if (_number(row, "ep") or 1) > 1:
        raise ValueError("expert parallelism is not modelled")
    model = _model(row)
    cluster = _cluster(row)
    values = _values(row, model, cluster)
    cap = _number(row, "cap_gib")
    if cap is not None:
        # The cap is the allocator's: context and communicators lie outside of it.
        values["capacity_gib"] = min(values["capacity_gib"], cap + outside_gib(values))
    oom = row["status"] in ("oom", "crash_or_oom")
    untimed = oom or row.get("outcome", "ok") not in ("", "ok")
    step_time_s = None if untimed else _step_time_s(row, values, model)
    own = bool(row.get("engine"))
    peak = _number(row, "peak_mem_gb")
    if peak is not None and own:
        peak *= 1e9 / 2**30
    if step_time_s is None and peak is None and not oom:
        raise ValueError("neither time, memory nor OOM printed")
    whole = f"{values['global_batch']:g}"
    return Run(
        row=row,
        cell=(row["model"], row["gpu"], row["gpus"], row["seq_len"], whole),
        model=model,
        cluster=cluster,
        precision=_precision(row)[0],
        values=values,
        step_time_s=step_time_s,
        peak_memory_gib=peak,
        peak_is_allocated=own,
        out_of_memory=oom,
    )
