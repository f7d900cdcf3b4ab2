"""What models, recipes, layouts and clusters give to a row of `Columns`."""

import functools
from collections.abc import Sequence

from platform.cost_model.columns import CHECKPOINTING, ENGINES, LOGIT_BYTES, OFFLOAD, Columns, from_rows
from platform.cost_model.compression import compression_values
from platform.cost_model.hardware import PLAIN_SHARE, ClusterSpec
from platform.cost_model.offload import LINK_SHARE
from trainers.layout import BatchPoint, Layout, activation_budget
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

BIASED_FLASH = 0.3
"""Rate of scaled_dot_product_attention with an additive bias, as a share of causal fused attention's: it computes both
triangles, and reads the bias. An estimate."""

ROUNDING = {"blocks": 0.06, "expandable": 0.02}
"""Share of the allocated bytes that the allocator holds besides at the peak and cannot give back: tails of blocks in
use, of fixed size or in expandable segments. This project's searches run with the latter: BLOOM 7b1 ran out of memory
on an H200 with 138.0 to 138.5 of 139.8 GiB allocated and at most 0.2 GiB more reserved."""

PREFETCH = {"2021": 0.0, "current": 0.6}
"""ZeRO-3 gathered each parameter as its module came until DeepSpeed 0.6 (February 2022) rewrote the coordinator to
fetch ahead in the order it traced, several at once (`partitioned_param_coordinator.py`). Today 39 % of what the links
need is exposed, at micro-batches 1 and 2 of BLOOM 7b1 on four H200 (this project)."""


def model_values(model: ModelSpec) -> dict[str, float]:
    """What a model gives to its rows."""
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "kv_width": model.num_kv_heads * model.head_dim,
        "heads": model.num_heads,
        "ffn": model.ffn_size,
        "gated": float(model.gated),
        "rotary": float(model.position == "rotary"),
        "vocab": model.vocab_size,
        "layer_parameters": model.parameters_per_layer,
        "embedding_parameters": model.embedding_parameters,
        "table_parameters": model.vocab_size * model.hidden_size,
        "tied": float(bool(model.tied_embeddings)),
    }


def recipe_values(recipe: Recipe) -> dict[str, float]:
    """What a recipe gives to its rows."""
    compute = 2 if recipe.compute_precision in ("bf16", "fp16") else 4
    return model_values(recipe.model) | {
        "seq_len": recipe.seq_len,
        "global_batch": recipe.global_batch,
        "compute_bytes": compute,
        "scales_loss": float(recipe.compute_precision == "fp16"),
        "state_bytes": 2 if recipe.state_precision == "bf16" else 4,
        "moments": 2 if recipe.optimizer == "adamw" else 0,
        **compression_values(recipe.model, recipe.compression),
    }


def layout_values(recipe: Recipe, layout: Layout) -> dict[str, float]:
    """What a layout gives to its rows."""
    compute = 2 if recipe.compute_precision in ("bf16", "fp16") else 4
    state = 2 if recipe.state_precision == "bf16" else 4
    return {
        "engine": ENGINES.index(layout.engine),
        "zero_stage": layout.zero_stage,
        "shard": layout.dp_shard * layout.cp,
        "dp": layout.data_parallel,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "virtual_stages": 1,
        "sequence_parallel": float(layout.tp > 1),
        "sync_every": float(layout.grad_sync == "every"),
        **checkpointing_values(layout.checkpointing),
        "offload": OFFLOAD.index(layout.offload),
        "overlaps": float(layout.overlap == "on" and layout.zero_stage < 3),
        "blocks_ahead": layout.prefetch,
        "reshard": (layout.reshard or layout.dp_shard) * layout.cp,
        "bucket_bytes": layout.bucket_mib * 2.0**20 or default_bucket_bytes(layout.engine, state, compute),
        "checkpoint_blocks": 1.0,
        "kept_checkpoints": 1.0,
        "flash": flash_share(recipe.model.architecture, layout.attention),
        "wide_softmax": float(recipe.model.architecture != "gpt2"),
        "fused": float(layout.compile != "none"),
        "compiled_calls": compiled_calls(layout.compile, recipe.model.num_layers),
        "logit_bytes": logit_bytes(loss_kind(layout.loss == "chunked", layout.compile), compute),
        "inner_copies": inner_copies(recipe.model.architecture, layout.compile != "none"),
        **activation_passes(recipe.model.architecture, recipe.model.gated, layout.compile != "none"),
        "chunked_loss": float(layout.loss == "chunked"),
        "metric_losses": 0.0,
        "dropout": 0.0,
        "blocking": 0.0,
        "rounding": ROUNDING["expandable"],
        "reduces_whole": 1.0,
        "prefetch": 0.0 if layout.overlap == "off" else PREFETCH["current"],
        # Every engine of ours reduces and sums in the states' type.
        "gradient_bytes": state,
    }


def checkpointing_values(name: str) -> dict[str, float]:
    """A word of `CHECKPOINTING` as columns."""
    every = {"every_4": 4.0, "every_2": 2.0}.get(name, 1.0)
    budget = activation_budget(name)
    kind = min(CHECKPOINTING.index(name), 2) if budget == 1 else 0
    return {"checkpointing": kind, "checkpoint_every": every, "budget": budget}


def compiled_calls(compile_: str, num_layers: int) -> float:
    """`Columns.compiled_calls` by the layout's word for what is compiled."""
    return {"block": 1.0, "model": 1.0 / num_layers}.get(compile_, 0.0)


def flash_share(architecture: str, attention: str) -> float:
    """`Columns.flash` of an attention kernel: BLOOM's ALiBi is an additive bias to sdpa."""
    if attention == "eager":
        return 0.0
    return BIASED_FLASH if (architecture, attention) == ("bloom", "sdpa") else 1.0


def loss_kind(chunked: bool, compile_: str) -> str:
    """The key of `LOGIT_BYTES`: what is compiled whole takes its loss along, a chunk's is compiled with the blocks."""
    if chunked:
        return "chunked" if compile_ == "none" else "fused"
    return "compiled" if compile_ == "model" else "plain"


def logit_bytes(loss: str, compute_bytes: float) -> float:
    """Bytes of a logit by kind of loss; in fp32 nothing is cast, so each copy is the logits' own size."""
    return LOGIT_BYTES[loss] if compute_bytes == 2 else {"kept": 16.0, "chunked": 8.0, "fused": 8.0}.get(loss, 12.0)


def inner_copies(architecture: str, fused: bool) -> float:
    """Tensors of inner width saved: before and after the activation, the gate's two besides.

    transformers' GPT-2 computes its GELU in eight element-wise steps, of which eager execution saves three more:
    the tangent, half the input and one plus the tangent (`NewGELUActivation`).
    """
    if architecture == "llama":
        return 3.0 if fused else 4.0
    return 5.0 if architecture == "gpt2" and not fused else 2.0


def activation_passes(architecture: str, gated: bool, fused: bool) -> dict[str, float]:
    """Reads and writes of one inner value by the activation, forward and backward, as columns.

    transformers computes the GELU of BLOOM (`bloom_gelu_forward`, `bloom_gelu_back`: 9 and 18 element-wise kernels) and
    of GPT-2 (`NewGELUActivation`: 8, and autograd's of each) step by step: a kernel reads one or two values and writes
    one. Other eager activations are one kernel and the gate's product, with casts and copies around them.
    """
    steps = {"bloom": (21.0, 44.0), "gpt2": (18.0, 28.0)}.get(architecture)
    if steps is None or fused:
        forward = (2.0 if fused else 4.4) * (1 + gated)
        steps = forward, 1.8 * forward
    return {"activation_forward": steps[0], "activation_backward": steps[1]}


def default_bucket_bytes(engine: str, state_bytes: float, compute_bytes: float) -> float:
    """Bytes of an engine's own gradient bucket: 25 MiB in DDP, 5e8 elements in DeepSpeed; FSDP reduces unit by unit."""
    return {"ddp": 25 * 2.0**20, "fsdp": 0.0, "deepspeed": 5e8 * compute_bytes, "megatron": 4e7 * state_bytes}[engine]


def cluster_values(cluster: ClusterSpec, precision: str) -> dict[str, float]:
    """What a cluster gives to its rows, for products computed in `precision`."""
    device = cluster.device
    peak = device.peak_tflops(precision) * 1e12
    # fp8 products also cast their operands and find their largest values: Transformer Engine reports 1.3 to 1.5 times
    # bf16 where the peak is twice as high (docs.nvidia.com, Transformer Engine, "Performance Optimizations").
    share = device.matmul_share * (0.75 if precision == "fp8" else 1.0)
    if precision == "fp32":
        share = PLAIN_SHARE
    half_type = "fp16" if precision in ("fp16", "fp8") else "bf16"
    half = device.peak_tflops(half_type) * device.scale(half_type) * 1e12
    return {
        "matmul_flops": peak * share * device.scale(precision),
        # Products of the matrix units start and end slowly: they pass through shared memory in long pipelines.
        "tile_rows": 128 if precision == "fp32" else 256,
        "half_depth": 32 if precision == "fp32" else 128,
        "plain_flops": device.peak_tflops("fp32") * device.scale("fp32") * 1e12 * device.matmul_share,
        "peak_flops": peak,
        "flash_flops": half * device.flash_share,
        "bandwidth": device.bandwidth_gb_per_s * 1e9,
        "host_bandwidth": device.host_gb_per_s * 1e9 * LINK_SHARE,
        "units": device.units,
        "capacity_gib": device.memory_gib,
        "context_gib": device.context_gib,
        "devices_per_node": cluster.devices_per_node,
        "intra_bandwidth": cluster.intra_gb_per_s * 1e9,
        "intra_latency": cluster.intra_latency_s,
        "inter_bandwidth": cluster.inter_gb_per_s * 1e9,
        "group_bandwidth": cluster.group_gb_per_s * 1e9,
        "inter_latency": cluster.inter_latency_s,
        "spread": cluster.spread,
    }


def from_points(points: Sequence[tuple[Recipe, Layout, BatchPoint]], cluster: ClusterSpec) -> Columns:
    """Columns of (recipe, layout, batch point) triples on one cluster."""
    shared = functools.cache(functools.partial(_shared_values, cluster=cluster))  # a ladder's rungs differ in little
    return from_rows(
        [shared(recipe, layout) | _batch_values(recipe, layout, batch) for recipe, layout, batch in points]
    )


def _shared_values(recipe: Recipe, layout: Layout, cluster: ClusterSpec) -> dict[str, float]:
    """What all batch points of the two have in common."""
    own = recipe_values(recipe) | layout_values(recipe, layout)
    return own | cluster_values(cluster, recipe.compute_precision)


def _batch_values(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, float]:
    whole = recipe.global_batch or batch.global_batch(layout)
    return {"micro_batch": batch.micro_batch, "grad_accum": batch.grad_accum, "global_batch": whole}
