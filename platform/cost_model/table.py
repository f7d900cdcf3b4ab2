"""Measured tables: one row a run, in the project's table header; read into columns, or left out with the reason.

Besides the project's own tables the reader takes published ones: what a row does not state is taken for what its stack
did at the time (`stacks`), and a row that contradicts itself is left out.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.features import Workload, features
from platform.cost_model.hardware import ClusterSpec, cluster_of, find_device_by_memory, find_node
from platform.cost_model.layout_arrays import LayoutArrays
from platform.cost_model.memory import FRAGMENTATION, outside_gib
from platform.cost_model.mesh import STAGE_COLUMNS
from platform.cost_model.predict import predict
from platform.cost_model.published import (
    compile_of,
    convention_of,
    is_flash,
    modules_of,
    moments_of,
    offload_of,
    precision_of,
    sharing_ranks,
    stack_features,
)
from platform.cost_model.rows import Row, number, positive_number, whole_number, words
from platform.cost_model.stacks import STAGES, data_parallelism_of, fact, has, software_of, with_software
from trainers.values.axes import defaults_of
from trainers.values.layout import Layout
from trainers.values.layout_axes import Checkpointing
from trainers.values.measurement import TIMED, Outcome
from trainers.values.spec import ModelSpec

_SIMULATED = re.compile(r"config\w*(?: files?)? (?:give|state)s? intra")
"""Words of rows whose link is a figure of a simulator's configuration."""
GUESSED = "software not stated, taken for {} by the words of source and notes"
UNSTATED_CHECKPOINTING = "activation_ckpt not stated, taken for the least with which the run fits"
CELL = ("model", "gpu", "gpus", "seq_len", "global_batch", "recipe")
"""Columns that are equal in all runs of a cell: those compete. Published tables state no recipe."""

PeakKind = Literal["allocated", "reserved", "device"]
"""Kinds of a peak: of the allocator's tensors, of all that it has reserved, or of the whole device."""

AXES = {
    "words": ("engine", "checkpointing", "offload", "grad_sync"),
    "numbers": ("zero_stage", "tp", "pp", "cp", "virtual", "dp_shard", "dp_replicate"),
    "values": ("checkpoint_blocks", "micro_batch"),
    "texts": (
        "attention", "flash_attention", "attention_kernel", "fused", "loss", "compile", "optimizer", "state_precision",
        "seq_parallel", "tp_overlap", "zero_group",
    ),
}  # fmt: skip
"""Parts of a run that are axes: words and numbers of its layout, values that its stack has, texts as the row has them.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One row that could be interpreted."""

    row: Row
    cell: tuple[str, ...]
    """Its `CELL`, "" where nothing is stated."""
    model: ModelSpec
    cluster: ClusterSpec
    precision: str
    layout: Mapping[str, str | float]
    """Its layout by axis. The engine is the data parallelism of its stack."""
    values: Mapping[str, float]
    """One row of `Columns`."""
    step_time_s: float | None
    peak_memory_gib: float | None
    """Published figures are nvidia-smi's, whose GB are 2**30 bytes."""
    peak_kind: PeakKind
    out_of_memory: bool
    assumed: tuple[str, ...] = ()
    """Assumptions about what the row does not state, in words that rows share."""
    num_merged: int = 1

    @property
    def allocated_gib(self) -> float | None:
        """Memory of the allocator's tensors at the peak, as far as the printed peak tells."""
        if self.peak_memory_gib is None or self.peak_kind == "device":
            return None
        return self.peak_memory_gib / (1 + FRAGMENTATION * (self.peak_kind == "reserved"))


def _model(row: Row) -> ModelSpec:
    """Returns the model of a row. Gate and tied table are not columns: of their four cases, the one nearest to
    `params_b`.
    """
    seq_len, hidden = positive_number(row, "seq_len"), positive_number(row, "hidden")
    stated = number(row, "params_b")
    cases: list[ModelSpec] = []
    for gated, tied in itertools.product((False, True), (True, False)):
        cases.append(
            ModelSpec(
                name=row["model"],
                architecture="llama" if gated else "gpt2",
                num_layers=positive_number(row, "layers"),
                hidden_size=hidden,
                num_heads=positive_number(row, "heads"),
                num_kv_heads=whole_number(row, "kv_heads") or 0,
                ffn_size=whole_number(row, "ffn") or 0,
                vocab_size=positive_number(row, "vocab"),
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
    gpus = positive_number(row, "gpus")
    own = bool(row.get("engine"))
    device = find_device_by_memory(row["gpu"], None if own else number(row, "gpu_mem_gb"))
    usual = cluster_of(device, 1, 8)
    nodes = (whole_number(row, "nodes") or 0) or max(1, -(-gpus // usual.devices_per_node))
    if gpus % nodes:
        raise ValueError(f"{gpus} GPUs do not divide over {nodes} nodes")
    text = words(row)
    stated = re.search(r"(\d+) ?gbps (?:node|inter)", text)
    gbit_per_s = number(row, "node_gbps") or (float(stated[1]) if stated else 0.0)
    cluster = cluster_of(
        device,
        nodes,
        gpus // nodes,
        node=find_node(text, device.name),
        inter_gb_per_s=gbit_per_s / 8,
        # NVLink is wired into an SXM board: a simulator's slower figure is what it takes collectives to reach.
        intra_gb_per_s=0.0 if _SIMULATED.search(text) else number(row, "link_gbs") or 0.0,
    )
    return with_software(cluster, software_of(row))


def _degrees(row: Row) -> tuple[float, float, float, float]:
    """Returns (tp, pp, cp, dp) that multiply to the GPUs.

    Raises:
        ValueError: they do not.
    """
    gpus = positive_number(row, "gpus")
    tp, pp, cp = positive_number(row, "tp"), positive_number(row, "pp"), whole_number(row, "cp") or 1
    dp = whole_number(row, "dp") or gpus / (tp * pp * cp)
    if tp * pp * cp * dp != gpus:
        raise ValueError(f"tp {tp:g} x pp {pp:g} x cp {cp:g} x dp {dp:g} is not {gpus:g} GPUs")
    return tp, pp, cp, dp


def _batch(row: Row, dp: float) -> tuple[float, float]:
    """Returns (micro_batch, grad_accum) that multiply, with the data-parallel degree, to the global batch.

    Raises:
        ValueError: they do not.
    """
    micro_batch = positive_number(row, "micro_batch")
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
    """Returns the stated number, or, for an interleaved schedule without one, the least above one that divides the
    blocks.
    """
    if pp > model.num_layers + 2:  # embedding and head may count as a block each
        raise ValueError(f"pp {pp:g} cuts {model.num_layers} blocks into more stages than there are")
    stated = whole_number(row, "vp")
    if stated:
        if stated > 1 and pp * stated > model.num_layers + 2:
            raise ValueError(f"vp {stated} cuts {model.num_layers} blocks of {pp:g} stages finer than they are")
        return float(stated)
    if pp > 1 and model.num_layers % pp == 0 and fact(software_of(row), "interleaves", False):
        return float(model.num_layers // pp)
    if pp > 1 and "interleav" in words(row) and model.num_layers % pp == 0:
        per_stage = int(model.num_layers // pp)
        return float(next((cut for cut in range(2, per_stage + 1) if per_stage % cut == 0), 1))
    return 1.0


def _layout(row: Row, model: ModelSpec, cluster: ClusterSpec) -> dict[str, str | float]:
    """Returns the axes of a row's layout: words as they are stated, data parallelism as its stack has it.

    Raises:
        ValueError: degrees or words that no run can have.
    """
    tp, pp, cp, dp = _degrees(row)
    engine, strategy = data_parallelism_of(row), row["strategy"]
    checkpointing = row["activation_ckpt"] or ("none" if row.get("engine") else "")
    if checkpointing not in get_args(Checkpointing):
        raise ValueError(
            f"activation_ckpt {checkpointing!r} is not known" if checkpointing else "activation_ckpt not stated"
        )
    stage = STAGES[strategy]
    shard = dp if stage or has(engine, "shards_at_stage_0") else 1.0
    virtual = _virtual_stages(row, model, pp)
    if strategy == "hsdp":  # ranks of context parallelism hold the same parameters, so shards are cut over them too
        shard = min(shard * cp, cluster.devices_per_node) / cp
    if stage or strategy == "hsdp":
        shard = sharing_ranks(row, dp) or shard
    return {
        **defaults_of(Layout),
        "engine": engine,
        "zero_stage": stage,
        "dp_replicate": dp / shard,
        "dp_shard": shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual": virtual,
        "grad_sync": row.get("grad_sync", "every" if has(engine, "reduces_every_micro_step") else "") or "last",
        "checkpointing": checkpointing,
        "offload": offload_of(row),
        "attention": row.get("attention") or ("sdpa" if is_flash(row, cluster) else "eager"),
        "loss": "chunked" if row.get("loss") == "chunked" else "plain",
        "compile": compile_of(row),
    }


def _columns(row: Row, model: ModelSpec, cluster: ClusterSpec, layout: Mapping[str, str | float]) -> Columns:
    tp, pp = float(layout["tp"]), float(layout["pp"])
    micro_batch, grad_accum = _batch(row, float(layout["dp_replicate"]) * float(layout["dp_shard"]))
    precision, state_bytes, _ = precision_of(row)
    work = Workload(
        model=model,
        modules=modules_of(row),
        seq_len=positive_number(row, "seq_len"),
        precision=precision,
        state_bytes=state_bytes,
        moments=moments_of(row, model, pp),
        compression=row.get("compression", "") or "none",
    )
    return features(
        work,
        LayoutArrays.of([layout]),
        cluster,
        micro_batch=np.array([micro_batch]),
        grad_accum=np.array([grad_accum]),
        stack={
            **stack_features(row, work, cluster, tp),
            # How other software cuts its stages is not stated.
            **({} if row.get("engine") else dict.fromkeys(STAGE_COLUMNS, 0.0)),
        },
    )


def _step_time_s(row: Row, values: Mapping[str, float], model: ModelSpec) -> float | None:
    """Returns the seconds of a step: printed, or from tokens/s, or from TFLOP/s where the FLOP count is named."""
    printed, rate, tflops = (number(row, name) for name in ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"))
    if printed:
        return printed
    tokens = values["global_batch"] * values["seq_len"]
    gpus = positive_number(row, "gpus")
    if rate:
        return tokens / gpus / rate
    convention = convention_of(row)
    if tflops and convention:
        return model.flops_per_token(int(values["seq_len"]), convention) * tokens / gpus / (tflops * 1e12)
    return None


def interpret(row: Row, *, measured: bool = True) -> Run:
    """Returns the run of a row; where not `measured`, of one that states nothing to score too.

    Raises:
        ValueError: what is missing, unknown or contradicts itself.
    """
    assumed = () if row.get("software") or row.get("engine") else (GUESSED.format(software_of(row)),)
    if row["activation_ckpt"] or row.get("engine") or row["status"] != "ok":
        return dataclasses.replace(_interpret(row, measured=measured), assumed=assumed)
    # A run that ran did fit, and recomputing more than that needs would have cost time.
    for recomputed in ("none", "selective", "full"):
        run = _interpret({**row, "activation_ckpt": recomputed}, measured=measured)
        if predict(from_rows([run.values])).fits.all():
            break
    return dataclasses.replace(run, row=row, assumed=(*assumed, UNSTATED_CHECKPOINTING))


def _interpret(row: Row, *, measured: bool) -> Run:
    if row["status"] not in ("ok", "oom", "crash_or_oom"):
        raise ValueError(f"status {row['status'] or 'not stated'}")
    if row.get("outcome") and row["outcome"] not in set(Outcome):
        raise ValueError(f"outcome {row['outcome']!r} is not one of {', '.join(Outcome)}")
    if (number(row, "ep") or 1) > 1:
        raise ValueError("expert parallelism is not modelled")
    model = _model(row)
    cluster = _cluster(row)
    layout = _layout(row, model, cluster)
    columns = _columns(row, model, cluster, layout)
    values = {name: value.item() for name, value in columns.arrays().items()}
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
        layout=layout,
        values=values,
        step_time_s=step_time_s,
        peak_memory_gib=peak,
        peak_kind="allocated" if own else fact(software_of(row), "memory_printed", "device"),
        out_of_memory=oom,
    )


def axes_of(run: Run) -> dict[str, str | int]:
    """Returns the axis -> value of one run, the same axes for all runs."""
    return {
        **{name: str(run.layout[name]) for name in AXES["words"]},
        **{name: int(run.layout[name]) for name in AXES["numbers"]},
        **{name: int(run.values[name]) for name in AXES["values"]},
        "precision": run.precision,
        **{name: run.row.get(name, "") for name in AXES["texts"]},
    }
