"""Parts of a measured table's row: model, cluster, layout under its software, and batch."""

import dataclasses
import itertools
import math
import statistics
from typing import get_args

from platform.cost_model.hardware import ClusterSpec, Device, catalogue, cluster_of, find_device_by_memory, node_names
from platform.cost_model.stacks import fact, has, with_software
from platform.validate.cells import Row, choice, number, positive_number, whole_number
from platform.validate.facts import NOTED, noted_column
from platform.validate.published import compile_of, is_flash, sharing_ranks
from platform.validate.row_software import data_parallelism_of, software_of, stage_of
from platform.validate.rows import NEEDED
from search_spaces.degrees import num_ranks
from trainers.spec import architectures
from trainers.spec.axis import choices_of, defaults_of
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES, CUTTING, MODEL_PARALLEL, Checkpointing, Offload
from trainers.spec.model import ModelSpec


def model_of(row: Row) -> ModelSpec:
    """Returns the model of a row.

    The table has no columns for a gated MLP and tied embeddings: the one of the four cases nearest to `params_b` is
    taken. Models with experts have a gated MLP and untied embeddings.

    Raises:
        ValueError: the number of parameters differs from the stated one, or only some blocks have experts.
    """
    if whole_number(row, "experts"):
        return _with_experts(row)
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
                head_width=whole_number(row, "head_dim") or 0,
                window=whole_number(row, "window") or 0,
                window_layers=whole_number(row, "window_layers") or 0,
                ffn_size=whole_number(row, "ffn") or 0,
                vocab_size=positive_number(row, "vocab"),
                max_positions=seq_len,
                tied_embeddings=tied,
            )
        )
    if not stated:
        return cases[0]
    # A plain GPT with tied embeddings unless another case is clearly nearer.
    errors = [abs(case.num_parameters / 1e9 / stated - 1) for case in cases]
    best = min(range(4), key=lambda index: errors[index])
    chosen = cases[best] if errors[0] > errors[best] + 0.02 else cases[0]
    _check_parameters(chosen, stated)
    return chosen


def _with_experts(row: Row) -> ModelSpec:
    """Returns a model with experts in all blocks: of a known family by its name, else Mixtral, or Qwen2 with a shared
    expert. If the width of an expert is not stated, it is derived from `params_b`.
    """
    layers, of_experts, stated = (
        positive_number(row, "layers"),
        whole_number(row, "moe_layers"),
        number(row, "params_b"),
    )
    if of_experts and of_experts != layers:
        raise ValueError(f"{of_experts} of {layers} blocks have experts, and blocks of two kinds are not predicted")
    width = whole_number(row, "moe_ffn") or whole_number(row, "ffn")
    shared = whole_number(row, "shared_ffn") or (whole_number(row, "shared_experts") or 0) * (width or 0)
    family = row.get("architecture", "")
    is_known = family in architectures.names() and getattr(architectures.architecture_of(family), "experts", "")
    spec = ModelSpec(
        name=row["model"],
        architecture=family if is_known else "qwen2_moe" if shared else "mixtral",
        num_layers=layers,
        hidden_size=positive_number(row, "hidden"),
        num_heads=positive_number(row, "heads"),
        num_kv_heads=whole_number(row, "kv_heads") or 0,
        head_width=whole_number(row, "head_dim") or 0,
        window=whole_number(row, "window") or 0,
        window_layers=whole_number(row, "window_layers") or 0,
        ffn_size=width or 8,
        shared_ffn_size=shared,
        num_experts=positive_number(row, "experts"),
        experts_per_token=positive_number(row, "top_k"),
        vocab_size=positive_number(row, "vocab"),
        max_positions=positive_number(row, "seq_len"),
        tied_embeddings=False,
    )
    if width is None:
        if not stated:
            raise ValueError("neither moe_ffn nor params_b stated, from which the width of an expert follows")
        each = dataclasses.replace(spec, ffn_size=16).num_parameters - spec.num_parameters  # of 8 more columns
        spec = dataclasses.replace(spec, ffn_size=8 + 8 * max(0, round((1e9 * stated - spec.num_parameters) / each)))
    if stated:
        _check_parameters(spec, stated)
    return spec


def _check_parameters(model: ModelSpec, stated_b: float) -> None:
    if abs(model.num_parameters / 1e9 / stated_b - 1) > 0.15:
        raise ValueError(f"{model.num_parameters / 1e9:.2f}B parameters by its shape, {stated_b:g}B stated")


def _noted(row: Row, axis: str) -> str:
    """Returns the value of an axis stated in notes, else its default; other software is assumed to group experts."""
    groups = axis == "experts" and row.get("experts") and not row.get("engine")
    default = "grouped" if groups else str(defaults_of(Layout)[axis])
    return choice(row, noted_column(axis), choices_of(Layout)[axis], default)


def cluster_of_row(row: Row) -> ClusterSpec:
    gpus = positive_number(row, "gpus")
    of_this_project = bool(row.get("engine"))
    device = find_device_by_memory(row["gpu"], None if of_this_project else number(row, "gpu_mem_gb"))
    usual = cluster_of(device, 1, 8)
    nodes = (whole_number(row, "nodes") or 0) or max(1, -(-gpus // usual.devices_per_node))
    if gpus % nodes:
        raise ValueError(f"{gpus} GPUs do not divide over {nodes} nodes")
    cluster = cluster_of(
        device,
        nodes,
        gpus // nodes,
        node=choice(row, "node", node_names()) or None,
        inter_gb_per_s=(number(row, "node_gbps") or 0.0) / 8,
        intra_gb_per_s=number(row, "link_gbs") or 0.0,
    )
    if not of_this_project and cluster.network_source == "assumed" and cluster.usual_node:
        cluster = dataclasses.replace(cluster, link_sigma=_spread_of_networks(device))
    return with_software(cluster, software_of(row))


def _spread_of_networks(device: Device) -> float:
    """Returns the log deviation of network rates over the catalogue's nodes with this family of devices: the
    uncertainty of an unstated network.
    """
    nodes, family = catalogue()["nodes"].values(), device.name.split("-")[0]
    alike = [math.log(node["inter_gb_per_s"]) for node in nodes if node["device"].split("-")[0] == family]
    return statistics.pstdev(alike)


def _degrees(row: Row) -> tuple[dict[str, float], float]:
    """Returns the degrees that split the model, by name, and the data-parallel degree.

    Raises:
        ValueError: their product differs from the number of GPUs.
    """
    gpus = positive_number(row, "gpus")
    degrees = {
        name: float(positive_number(row, name) if name in NEEDED else whole_number(row, name) or 1)
        for name in MODEL_PARALLEL
    }
    dp = whole_number(row, "dp") or gpus / num_ranks(degrees, degrees)
    if num_ranks(degrees, degrees) * dp != gpus:
        numbering = {name: value for name, value in degrees.items() if name in AXES}
        product = " x ".join(f"{name} {value:g}" for name, value in {**numbering, "dp": dp}.items())
        raise ValueError(f"{product} is not {gpus:g} GPUs")
    return degrees, dp


def batch_of(row: Row, dp: float) -> tuple[float, float]:
    """Returns (micro_batch, grad_accum). Their product with the data-parallel degree is the global batch.

    Raises:
        ValueError: the product differs from the global batch, or the row states neither number.
    """
    micro_batch = positive_number(row, "micro_batch")
    grad_accum, global_batch = number(row, "grad_accum"), number(row, "global_batch")
    if grad_accum is None:
        if global_batch is None:
            raise ValueError("neither grad_accum nor global_batch stated")
        grad_accum = global_batch / (micro_batch * dp)
    if grad_accum < 1 or grad_accum % 1 or (global_batch is not None and micro_batch * grad_accum * dp != global_batch):
        raise ValueError(
            f"micro_batch {micro_batch:g} x grad_accum {grad_accum:g} x dp {dp:g} is not global_batch {global_batch:g}"
        )
    return micro_batch, grad_accum


def _virtual_stages(row: Row, model: ModelSpec, stages: float) -> float:
    """Returns the number of virtual stages per stage: as stated; one per block for software that usually interleaves;
    for a stated interleaved schedule, the smallest number above 1 that divides a stage's blocks; otherwise 1.

    Raises:
        ValueError: there are more stages than blocks.
    """
    if stages > model.num_layers + 2:  # embedding and head may count as a block each
        raise ValueError(f"pp {stages:g} cuts {model.num_layers} blocks into more stages than there are")
    stated = whole_number(row, "vp")
    if stated:
        if stated > 1 and stages * stated > model.num_layers + 2:
            raise ValueError(f"vp {stated} cuts {model.num_layers} blocks of {stages:g} stages finer than they are")
        return float(stated)
    usual = row.get("schedule") in (None, "", "interleaved") and fact(software_of(row), "interleaves", False)
    if stages > 1 and model.num_layers % stages == 0 and usual:
        return float(model.num_layers // stages)
    if stages > 1 and row.get("schedule") == "interleaved" and model.num_layers % stages == 0:
        per_stage = int(model.num_layers // stages)
        return float(next((cut for cut in range(2, per_stage + 1) if per_stage % cut == 0), 1))
    return 1.0


def layout_of_row(row: Row, model: ModelSpec, cluster: ClusterSpec) -> dict[str, str | float]:
    """Returns the axes of a row's layout: words as stated, data parallelism as in its stack.

    Raises:
        ValueError: no run can have these degrees or words.
    """
    degrees, dp = _degrees(row)
    stages, tokens = (num_ranks(degrees, CUTTING[cut]) for cut in ("depth", "tokens"))
    engine, strategy = data_parallelism_of(row), row["strategy"]
    checkpointing = row["activation_ckpt"] or ("none" if row.get("engine") else "")
    if checkpointing not in get_args(Checkpointing):
        raise ValueError(
            f"activation_ckpt {checkpointing!r} is not known" if checkpointing else "activation_ckpt not stated"
        )
    # The stage of FSDP under a pipeline depends on the software, unless the row states that parameters are gathered
    # again.
    stage = stage_of(strategy, software_of(row), 1 if row.get("regathers") == "yes" else stages)
    shard = dp if stage else 1.0
    virtual = _virtual_stages(row, model, stages)
    usual = fact(software_of(row), "grad_sync", "every" if has(engine, "reduces_every_micro_step") else "last")
    every = "grad_sync" not in row and usual == "every" and has(engine, "reduces_every_micro_step") and stages == 1
    if strategy == "hsdp":  # context-parallel ranks hold the same parameters, so they share shards too
        shard = min(shard * tokens, cluster.devices_per_node) / tokens
    if stage or strategy == "hsdp":
        shard = sharing_ranks(row, dp) or shard
    return {
        **defaults_of(Layout),
        "engine": engine,
        "zero_stage": stage,
        "dp_replicate": dp / shard,
        "dp_shard": shard,
        **degrees,
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual": virtual,
        # FSDP reduces gradients at every micro-step; under a pipeline, after the last backward pass
        # (torch/distributed/pipelining/stage.py, `backward_maybe_with_nosync`).
        "grad_sync": row.get("grad_sync") or ("every" if every else "last"),
        "checkpointing": checkpointing,
        "offload": choice(row, "offload", get_args(Offload), "none"),
        "attention": row.get("attention") or ("sdpa" if is_flash(row, cluster) else "eager"),
        "loss": loss if (loss := row.get("loss")) in ("chunked", "quack") else "plain",
        "compile": compile_of(row),
        **{name: _noted(row, name) for name in NOTED},
    }
