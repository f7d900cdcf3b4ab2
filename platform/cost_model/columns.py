"""`Columns`: layout x batch points as columns of numbers, so that a million of them are predicted by array formulas.

A field is a float array of one common length, or a 0-d array where all points agree: formulas broadcast, so what is
the same for all is computed once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.cost_model.compression import compression_values
from platform.cost_model.hardware import PLAIN_SHARE, ClusterSpec
from trainers.layout import BatchPoint, Layout, activation_budget
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ENGINES = ("ddp", "fsdp", "deepspeed", "megatron")
CHECKPOINTING = ("none", "selective", "full", "every_4", "every_2", "budget_75", "budget_50", "budget_25")
OFFLOAD = ("none", "optimizer", "all")
COMPILE = ("none", "block", "model")

LOGIT_BYTES = {"kept": 14.0, "plain": 12.0, "compiled": 8.0, "chunked": 8.0, "fused": 4.0}
"""Bytes of one logit at the loss's peak, computed in 2 bytes.

"plain": fp32 log-softmax, its gradient and the next one back, as `F.cross_entropy` over a cast leaves them; "kept":
that beside the logits, which the model's output holds on to;
"compiled": itself, log-softmax and gradient in its own type, one cast; "chunked": itself, fp32 log-softmax and a
gradient in its own type (`trainers/kernels/head.py`); "fused": that without the log-softmax, as a compiler makes it.
"""
CHUNK_LOGITS = 2.0**30
"""Logits of a chunk in `trainers/kernels/head.py`, which imports torch."""
BIASED_FLASH = 0.3
"""Rate of scaled_dot_product_attention with an additive bias, as a share of causal fused attention's: it computes both
triangles, and reads the bias. An estimate."""

ROUNDING = {"blocks": 0.06, "expandable": 0.02}
"""Share of the allocated bytes that the allocator holds besides at the peak and cannot give back: tails of blocks in
use, of fixed size or in expandable segments. This project's searches run with the latter: BLOOM 7b1 ran out of memory
on an H200 with 138.0 to 138.5 of 139.8 GiB allocated and at most 0.2 GiB more reserved."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """One row a point. Sizes in elements, bytes where named so, bandwidths in bytes per second, times in seconds."""

    layers: Array
    hidden: Array
    kv_width: Array
    heads: Array
    ffn: Array
    gated: Array
    rotary: Array
    vocab: Array
    layer_parameters: Array
    embedding_parameters: Array
    """Parameters outside the blocks, tied ones once."""
    table_parameters: Array
    """Of these, one vocabulary table."""
    tied: Array
    seq_len: Array
    global_batch: Array

    engine: Array
    """Index into `ENGINES`; "megatron" stands for published runs of Megatron-LM, whose kernels are fused by hand."""
    zero_stage: Array
    shard: Array
    """Ranks that share one copy of what the stage shards."""
    dp: Array
    tp: Array
    pp: Array
    cp: Array
    virtual_stages: Array
    sequence_parallel: Array
    sync_every: Array
    checkpointing: Array
    """Index into `CHECKPOINTING`, "full" for some blocks as for all, "none" for a budget."""
    checkpoint_every: Array
    """Distance between fully checkpointed blocks; 1 for all of them."""
    budget: Array
    """Share of a block's activations that compiled code keeps; 1 without a budget."""
    offload: Array
    """Index into `OFFLOAD`."""
    bucket_bytes: Array
    overlaps: Array
    """1 where DeepSpeed communicates beside its computing; the torch engines always do."""
    prefetch: Array
    """Blocks gathered ahead by wish; 0 for the engine's own choice."""
    reshard: Array
    """Ranks that hold a block between its two passes; `shard` where all of them do."""
    checkpoint_blocks: Array
    """Blocks that one full checkpoint spans: one input is kept for them, and they are recomputed together."""
    kept_checkpoints: Array
    """Share of a checkpointed block's input that stays on the device: less where it is cut or sent to the host."""
    flash: Array
    """Rate of fused attention over that of causal FlashAttention, 0 for eager attention."""
    wide_softmax: Array
    """1 where eager attention takes its softmax in fp32; GPT-2's takes it in the scores' own type."""
    fused: Array
    """1 where element-wise operations are fused by hand or compiler, 0 for eager execution."""
    logit_bytes: Array
    """Bytes that the loss holds of one logit at its peak; see `LOGIT_BYTES`."""
    chunked_loss: Array
    activation_forward: Array
    activation_backward: Array
    """Reads and writes of the inner width in an activation's passes; see `activation_passes`."""
    inner_copies: Array
    """Tensors of the feed-forward's inner width that a block saves; see `inner_copies`."""
    dropout: Array
    blocking: Array
    """1 where the host waits for each kernel that it launches (CUDA_LAUNCH_BLOCKING=1)."""
    micro_batch: Array
    grad_accum: Array

    compute_bytes: Array
    state_bytes: Array
    moments: Array
    """Optimizer states a parameter: 2 for Adam, 0 for Adafactor's factored ones."""
    gradient_bytes: Array
    """Bytes an element of an exchanged gradient."""
    compression: Array
    """Share of a gradient's bytes that is exchanged."""
    factor_rank: Array
    """Rank of PowerSGD's factors; 0 where gradients are not factored."""

    matmul_flops: Array
    """Sustained rate of large products: peak of the precision x the device's share."""
    tile_rows: Array
    half_depth: Array
    """Rows of a product's tile, and the depth at which starting and ending it costs as much as its products."""
    plain_flops: Array
    """Sustained rate of products that cannot use the matrix units."""
    peak_flops: Array
    flash_flops: Array
    bandwidth: Array
    units: Array
    capacity_gib: Array
    context_gib: Array
    devices_per_node: Array
    intra_bandwidth: Array
    intra_latency: Array
    inter_bandwidth: Array
    """Of a whole node, a direction."""
    group_bandwidth: Array
    """What one process group alone reaches of it."""
    inter_latency: Array
    rounding: Array
    """See `ROUNDING`."""
    spread: Array
    """Run-to-run deviation of the cluster, in log space."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all fields."""
        return np.broadcast_shapes(*(getattr(self, field.name).shape for field in dataclasses.fields(self)))

    def flat(self) -> "Columns":
        """A grid (`Enumeration.grid`) as one row a point; fields that all points share stay as they are."""
        shape = self.shape
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Columns(
            **{
                name: value if value.ndim == 0 else np.broadcast_to(value, shape).reshape(-1)
                for name, value in fields.items()
            }
        )

    def take(self, index: Any) -> "Columns":
        """The rows that `index` (a mask, a slice or positions) picks; fields that all rows share stay as they are."""
        picked = {
            field.name: value if value.ndim == 0 or (value.ndim == 2 and len(value) == 1) else value[index]
            for field in dataclasses.fields(self)
            for value in (getattr(self, field.name),)
        }
        return Columns(**picked)


def is_autocast(c: Columns) -> Mask:
    """Rows whose weights stay in the states' type and are cast for each product: DDP, and DeepSpeed's stage 0 where it
    sums in that type too (without, as in published runs, it holds 16-bit weights beside the masters).
    """
    plain = (c.engine == ENGINES.index("deepspeed")) & (c.zero_stage == 0) & (c.pp == 1)
    return (c.compute_bytes < c.state_bytes) & (
        (c.engine == ENGINES.index("ddp")) | (plain & (c.gradient_bytes >= c.state_bytes))
    )


def checkpointed_share(c: Columns) -> Array:
    """Share of the blocks that a full checkpoint holds."""
    return np.ceil(c.layers / c.checkpoint_every) / c.layers


def casts_softmax(c: Columns) -> Mask:
    """Rows whose eager attention casts scores to fp32 for the softmax and back; autocast does so everywhere."""
    return (c.compute_bytes < 4) & ((c.wide_softmax > 0) | is_autocast(c))


def widens_gelu(c: Columns) -> Mask:
    """Rows whose eager GELU is computed in fp32: GPT-2's takes a power, which autocast does in fp32, and all that
    follows is (torch.amp, "CUDA Ops that can autocast to float32"; transformers, `NewGELUActivation`).
    """
    return is_autocast(c) & (c.wide_softmax == 0) & (c.fused == 0) & (c.gated == 0)


FIELDS = tuple(field.name for field in dataclasses.fields(Columns))


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
        "shard": layout.dp_shard,
        "dp": layout.data_parallel,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "virtual_stages": 1,
        "sequence_parallel": float(layout.tp > 1),
        "sync_every": float(layout.grad_sync == "every"),
        **checkpointing_values(layout.checkpointing),
        "offload": OFFLOAD.index(layout.offload),
        "overlaps": float(layout.overlap == "on" or (layout.overlap == "default" and layout.zero_stage == 3)),
        "prefetch": layout.prefetch,
        "reshard": layout.reshard or layout.dp_shard,
        "bucket_bytes": layout.bucket_mib * 2.0**20 or default_bucket_bytes(layout.engine, state, compute),
        "checkpoint_blocks": 1.0,
        "kept_checkpoints": 1.0,
        "flash": flash_share(recipe.model.architecture, layout.attention),
        "wide_softmax": float(recipe.model.architecture != "gpt2"),
        "fused": float(layout.compile != "none"),
        "logit_bytes": logit_bytes(loss_kind(layout.loss == "chunked", layout.compile), compute),
        "inner_copies": inner_copies(recipe.model.architecture, layout.compile != "none"),
        **activation_passes(recipe.model.architecture, recipe.model.gated, layout.compile != "none"),
        "chunked_loss": float(layout.loss == "chunked"),
        "dropout": 0.0,
        "blocking": 0.0,
        "rounding": ROUNDING["expandable"],
        # Every engine of ours reduces and sums in the states' type.
        "gradient_bytes": state,
    }


def checkpointing_values(name: str) -> dict[str, float]:
    """A word of `CHECKPOINTING` as columns."""
    every = {"every_4": 4.0, "every_2": 2.0}.get(name, 1.0)
    budget = activation_budget(name)
    kind = min(CHECKPOINTING.index(name), 2) if budget == 1 else 0
    return {"checkpointing": kind, "checkpoint_every": every, "budget": budget}


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


def point_values(recipe: Recipe, layout: Layout, batch: BatchPoint, cluster: ClusterSpec) -> dict[str, float]:
    """One row: a point of `recipe` on `layout` on `cluster`."""
    return (
        recipe_values(recipe)
        | layout_values(recipe, layout)
        | cluster_values(cluster, recipe.compute_precision)
        | {"micro_batch": batch.micro_batch, "grad_accum": batch.grad_accum}
    )


def from_rows(rows: Sequence[Mapping[str, float]]) -> Columns:
    """Columns of rows that name every field."""
    return Columns(**{name: np.array([float(row[name]) for row in rows]) for name in FIELDS})


def from_points(points: Sequence[tuple[Recipe, Layout, BatchPoint]], cluster: ClusterSpec) -> Columns:
    """Columns of (recipe, layout, batch point) triples on one cluster."""
    return from_rows([point_values(*point, cluster) for point in points])
