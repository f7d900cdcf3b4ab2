"""Measured tables: one row a run, in the project's table header; read into columns, or left out with the reason.

Besides the project's own tables the reader takes published ones: what a row does not state is taken for what its stack
did at the time (`stacks`), and a row that contradicts itself is left out.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping

from platform.cost_model.columns import CHECKPOINTING, ENGINES
from platform.cost_model.compression import compression_values
from platform.cost_model.hardware import ClusterSpec, cluster_of, find_device_by_memory, find_node
from platform.cost_model.memory import outside_gib
from platform.cost_model.rows import Row, number, wanted, whole_number, words
from platform.cost_model.stacks import (
    convention_of,
    inner_copies_of,
    is_eager,
    kept_checkpoints,
    launches_block,
    loss_of,
    metric_losses,
    moments_of,
    offload_of,
    own_model,
    padded,
    precision_of,
    stack_of,
)
from platform.cost_model.values import (
    PREFETCH,
    ROUNDING,
    activation_passes,
    checkpointing_values,
    cluster_values,
    compiled_calls,
    default_bucket_bytes,
    flash_share,
    logit_bytes,
    model_values,
)
from trainers.measurement import TIMED
from trainers.spec import ModelSpec

CELL = ("model", "gpu", "gpus", "seq_len", "global_batch", "recipe")
"""Columns that are equal in all runs of a cell: those compete. Published tables state no recipe."""
_SPANS = re.compile(r"checkpoint-num-layers=(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One row that could be interpreted."""

    row: Row
    cell: tuple[str, ...]
    """Its `CELL`, "" where nothing is stated."""
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


def _model(row: Row) -> ModelSpec:
    """The model of a row. Gate and tied table are not columns: of their four cases, the one nearest to `params_b`."""
    seq_len, hidden = wanted(row, "seq_len"), wanted(row, "hidden")
    stated = number(row, "params_b")
    cases: list[ModelSpec] = []
    for gated, tied in itertools.product((False, True), (True, False)):
        cases.append(
            ModelSpec(
                name=row["model"],
                architecture="llama" if gated else "gpt2",
                num_layers=wanted(row, "layers"),
                hidden_size=hidden,
                num_heads=wanted(row, "heads"),
                num_kv_heads=whole_number(row, "kv_heads") or 0,
                ffn_size=whole_number(row, "ffn") or 0,
                vocab_size=wanted(row, "vocab"),
                max_positions=seq_len,
                tied_embeddings=tied,
            )
        )
    if not stated:
        return cases[0]
    # A plain GPT with a tied table unless another case is clearly nearer.
    errors = [abs(case.num_parameters / 1e9 / stated - 1) for case in cases]
    best = min(range(4), key=lambda index: errors[index])
    chosen = cases[best] if errors[0] > errors[best] + 0.02 else cases[0]
    if abs(chosen.num_parameters / 1e9 / stated - 1) > 0.15:
        raise ValueError(f"{chosen.num_parameters / 1e9:.2f}B parameters by its shape, {stated:g}B stated")
    return chosen


def _cluster(row: Row) -> ClusterSpec:
    gpus = wanted(row, "gpus")
    own = bool(row.get("engine"))
    device = find_device_by_memory(row["gpu"], None if own else number(row, "gpu_mem_gb"))
    usual = cluster_of(device, 1, 8)
    nodes = (whole_number(row, "nodes") or 0) or max(1, -(-gpus // usual.devices_per_node))
    if gpus % nodes:
        raise ValueError(f"{gpus} GPUs do not divide over {nodes} nodes")
    text = words(row)
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
    gpus = wanted(row, "gpus")
    tp, pp, cp = wanted(row, "tp"), wanted(row, "pp"), whole_number(row, "cp") or 1
    dp = whole_number(row, "dp") or gpus / (tp * pp * cp)
    if tp * pp * cp * dp != gpus:
        raise ValueError(f"tp {tp:g} x pp {pp:g} x cp {cp:g} x dp {dp:g} is not {gpus:g} GPUs")
    return tp, pp, cp, dp


def _batch(row: Row, dp: float) -> tuple[float, float]:
    """(micro_batch, grad_accum) that multiply, with the data-parallel degree, to the global batch.

    Raises:
        ValueError: they do not.
    """
    micro_batch = wanted(row, "micro_batch")
    grad_accum, whole = number(row, "grad_accum"), number(row, "global_batch")
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
    if pp > model.num_layers + 2:  # embedding and head may count as a block each
        raise ValueError(f"pp {pp:g} cuts {model.num_layers} blocks into more stages than there are")
    stated = whole_number(row, "vp")
    if stated:
        if stated > 1 and pp * stated > model.num_layers + 2:
            raise ValueError(f"vp {stated} cuts {model.num_layers} blocks of {pp:g} stages finer than they are")
        return float(stated)
    if pp > 1 and "interleav" in words(row) and model.num_layers % pp == 0:
        per_stage = int(model.num_layers // pp)
        return float(next((cut for cut in range(2, per_stage + 1) if per_stage % cut == 0), 1))
    return 1.0


def _values(row: Row, model: ModelSpec, cluster: ClusterSpec) -> dict[str, float]:
    tp, pp, cp, dp = _degrees(row)
    micro_batch, grad_accum = _batch(row, dp)
    precision, state_bytes, low_gradient_bytes = precision_of(row)
    compute_bytes = 2.0 if precision in ("bf16", "fp16", "fp8") else 4.0
    engine, strategy, text = stack_of(row), row["strategy"], words(row)
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
    fused = compiled if own else not is_eager(text)
    # Ranks of context parallelism hold the same parameters, so shards are cut over them too.
    shard = dp * cp if stage or engine == "fsdp" else 1.0
    if strategy == "hsdp":
        shard = min(shard, cluster.devices_per_node)
    return {
        **model_values(model),
        **cluster_values(cluster, precision),
        "vocab": model.vocab_size if own or is_eager(text) else padded(model.vocab_size, tp),
        "seq_len": wanted(row, "seq_len"),
        "global_batch": micro_batch * grad_accum * dp,
        "engine": ENGINES.index(engine),
        "zero_stage": stage,
        "shard": shard,
        "overlaps": 0,
        "blocks_ahead": 0,
        "reshard": shard,
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "virtual_stages": _virtual_stages(row, model, pp),
        "sequence_parallel": float(row.get("seq_parallel") == "yes" or (own and tp > 1)),
        "sync_every": float(row.get("grad_sync", "every" if engine == "fsdp" else "") == "every"),
        **checkpointing_values(checkpointing),
        "offload": offload_of(row),
        # The Hugging Face Trainer's "auto" bucket holds hidden_size^2 elements.
        "bucket_bytes": model.hidden_size**2 * 2.0
        if "hf trainer" in text
        else default_bucket_bytes(engine, state_bytes, compute_bytes),
        "checkpoint_blocks": float(spans[1]) if (spans := _SPANS.search(text)) else 1.0,
        "kept_checkpoints": kept_checkpoints(row, tp),
        "flash": flash_share(own_model(row) or "", row["attention"]) if row.get("attention") else float(flash),
        "wide_softmax": float(own_model(row) != "gpt2"),
        "fused": float(fused),
        "compiled_calls": compiled_calls(row.get("compile", ""), model.num_layers),
        "inner_copies": inner_copies_of(row, model, fused),
        **activation_passes(own_model(row), bool(model.gated), fused),
        "logit_bytes": logit_bytes(loss_of(row, flash), compute_bytes),
        "chunked_loss": float(row.get("loss") == "chunked"),
        "metric_losses": metric_losses(text),
        "rounding": ROUNDING["expandable" if searched else "blocks"],
        # Stacks with fused attention are younger than DeepSpeed 0.6.
        "prefetch": PREFETCH["current" if own or flash else "2021"],
        "reduces_whole": float(own or flash),
        "dropout": float(not own and not flash),
        "blocking": float(launches_block(text, cluster)),
        "micro_batch": micro_batch,
        "grad_accum": grad_accum,
        "compute_bytes": compute_bytes,
        "scales_loss": float(precision == "fp16"),
        "state_bytes": state_bytes,
        "moments": moments_of(row, model, pp),
        "gradient_bytes": gradient_bytes,
        **compression_values(model, row.get("compression", "")),
    }


def _step_time_s(row: Row, values: Mapping[str, float], model: ModelSpec) -> float | None:
    """Seconds of a step: printed, or from tokens/s, or from TFLOP/s where the FLOP count is named."""
    printed, rate, tflops = (number(row, name) for name in ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"))
    if printed:
        return printed
    tokens = values["global_batch"] * values["seq_len"]
    gpus = wanted(row, "gpus")
    if rate:
        return tokens / gpus / rate
    convention = convention_of(row)
    if tflops and convention:
        return model.flops_per_token(int(values["seq_len"]), convention) * tokens / gpus / (tflops * 1e12)
    return None


def interpret(row: Row, *, measured: bool = True) -> Run:
    """The run of a row; where not `measured`, of one that states nothing to score too.

    Raises:
        ValueError: what is missing, unknown or contradicts itself.
    """
    if row["status"] not in ("ok", "oom", "crash_or_oom"):
        raise ValueError(f"status {row['status'] or 'not stated'}")
    if (number(row, "ep") or 1) > 1:
        raise ValueError("expert parallelism is not modelled")
    model = _model(row)
    cluster = _cluster(row)
    values = _values(row, model, cluster)
    cap = number(row, "cap_gib")
    if cap is not None:
        # The cap is the allocator's: context and communicators lie outside of it.
        values["capacity_gib"] = min(values["capacity_gib"], cap + outside_gib(values))
    oom = row["status"] in ("oom", "crash_or_oom")
    untimed = oom or row.get("outcome", "ok") not in ("", *TIMED)
    step_time_s = None if untimed else _step_time_s(row, values, model)
    own = bool(row.get("engine"))
    peak = number(row, "peak_mem_gb")
    if peak is not None and own:
        peak *= 1e9 / 2**30
    if measured and step_time_s is None and peak is None and not oom:
        raise ValueError("neither time, memory nor OOM printed")
    stated = {**row, "global_batch": f"{values['global_batch']:g}"}
    return Run(
        row=row,
        cell=tuple(stated.get(name, "") for name in CELL),
        model=model,
        cluster=cluster,
        precision=precision_of(row)[0],
        values=values,
        step_time_s=step_time_s,
        peak_memory_gib=peak,
        peak_is_allocated=own,
        out_of_memory=oom,
    )
