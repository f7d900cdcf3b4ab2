"""Features: the only builder of the predictor's `Columns` from layouts, batch points, a model and a cluster.

Callers keep the layouts of their rows; no code decodes a row into a layout.
"""

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import BLOCK_COLUMNS, FIELDS, SOFTWARE_COLUMNS, Array, Columns, Mask, Software
from platform.cost_model.compression import compression_values
from platform.cost_model.engines import code_of, costs, has_own_mesh
from platform.cost_model.engines.base import Sizes
from platform.cost_model.evidence import device_sigma
from platform.cost_model.hardware import PLAIN_SHARE, THIS_PROJECT, ClusterSpec
from platform.cost_model.kernels import (
    PARTS_AROUND_EXPERTS,
    activation_passes,
    checkpoint_distance,
    compiled_calls,
    flash_share,
    half_length,
    inner_copies,
    is_full_checkpointing,
    logit_bytes,
    loss_kind,
    mask_speedup,
    pads_vocabulary,
    width_share,
    window_speedup,
)
from platform.cost_model.layout_arrays import AXES, LayoutArrays
from platform.cost_model.mesh import blocks_of_ranks
from platform.cost_model.offload import LINK_SHARE
from platform.cost_model.quantised import quantised_layers
from trainers.data.mask_density import MaskDensity, mask_density
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.architecture import Architecture
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import MODEL_PARALLEL, activation_budget
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

PREFETCH = constants.words("features", "PREFETCH")
UNFUSED_NORM_PASSES = constants.number("features", "UNFUSED_NORM_PASSES")
UNFUSED_NORM_BYTES = constants.number("features", "UNFUSED_NORM_BYTES")
HALF_DEPTH = constants.words("features", "HALF_DEPTH")
FP8_SHARE = constants.number("features", "FP8_SHARE")
FP8_ROWWISE = constants.number("features", "FP8_ROWWISE")
FP8_CAST_BYTES = constants.number("features", "FP8_CAST_BYTES")
FP8_EAGER_CAST_BYTES = constants.number("features", "FP8_EAGER_CAST_BYTES")


_OURS = {name: getattr(Software(), name) for name in SOFTWARE_COLUMNS}
"""Columns of this project's own trainers for values that layouts do not state."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingWork:
    """The work of a recipe or a published run, without layout and batch."""

    model: ModelSpec
    modules: Architecture | None
    """The architecture whose transformers modules run; None for a stack with its own modules."""
    seq_len: int
    precision: str
    """Precision of the products."""
    state_bytes: float
    moments: float
    """Optimizer states per parameter."""
    gathered_bytes: float | None = None
    """Bytes of a block's parameter when gathered by FSDP2; None for `compute_bytes`."""
    is_rowwise: bool = False
    """Whether FP8 products have one scale per row."""
    compression: str = "none"
    adapter_rank: int = 0
    adapted: tuple[tuple[int, int], ...] = ()
    """(outputs, inputs) of a block's linear layers with adapters."""
    stored_bytes: float | None = None
    """Bytes of a stored parameter; None for `state_bytes`."""
    quantised: tuple[tuple[int, int], ...] = ()
    """(outputs, inputs) of a block's linear layers with NF4 weights."""
    counts_ahead: bool = False
    """Whether a separate forward pass counts the tokens of experts, in steps with several micro-batches."""
    mask_density: MaskDensity | None = None
    """Mean numbers of keys to which a query attends with a document or prefix mask; None for a causal mask."""

    @classmethod
    def of(cls, recipe: Recipe) -> "TrainingWork":
        sizes = Sizes.of(recipe)
        return cls(
            model=recipe.model,
            modules=architecture_of(recipe.model.architecture),
            seq_len=recipe.seq_len,
            precision=recipe.product_type,
            state_bytes=2.0 if recipe.state_precision == "bf16" else 4.0,
            moments=2.0 if recipe.optimizer == "adamw" else 0.0,
            gathered_bytes=sizes.gathered,
            is_rowwise=recipe.float8_scaling == "rowwise",
            compression=recipe.compression,
            adapter_rank=recipe.adapter_rank,
            adapted=tuple(recipe.adapted_layers.values()),
            stored_bytes=sizes.stored,
            quantised=tuple(recipe.quantised_layers.values()),
            counts_ahead=recipe.balance_loss == "aux",
            mask_density=mask_density(recipe),
        )

    @property
    def compute_bytes(self) -> float:
        """Bytes per operand value of a product."""
        return 2.0 if self.precision in ("bf16", "fp16", "fp8") else 4.0


def features(
    work: TrainingWork,
    layouts: LayoutArrays,
    cluster: ClusterSpec,
    *,
    micro_batch: Array,
    grad_accum: Array,
    stack: Mapping[str, Array | float] | None = None,
) -> Columns:
    """Returns the rows of `layouts` at these batch points. `stack` has the features of a run's software, which replace
    those of this project's engines; see `stacks`.
    """
    quantised = quantised_layers(work.quantised, work.compute_bytes)
    values: dict[str, Array | Mask | float] = {
        **_of_model(work.model),
        **compression_values(work.model, work.compression),
        "seq_len": work.seq_len,
        "compute_bytes": work.compute_bytes,
        "gathered_bytes": work.compute_bytes if work.gathered_bytes is None else work.gathered_bytes,
        "scales_loss": work.precision == "fp16",
        "state_bytes": work.state_bytes,
        "stored_bytes": work.state_bytes if work.stored_bytes is None else work.stored_bytes,
        "adapter_rank": work.adapter_rank,
        "adapted_layers": len(work.adapted),
        "adapted_outputs": sum(outputs for outputs, _ in work.adapted),
        "adapted_inputs": sum(inputs for _, inputs in work.adapted),
        "quantised_weights": quantised.weights,
        "largest_quantised": quantised.largest,
        "moments": work.moments,
        # Every engine of this project reduces and sums in the states' type.
        "gradient_bytes": work.state_bytes,
        **_of_cluster(cluster, work.precision, work.model.head_dim, FP8_ROWWISE if work.is_rowwise else 1.0),
        **layouts.engine_axes(),
        **_of_engine(work, layouts),
        **_of_kernels(work, layouts, cluster.device.architecture),
        **blocks_of_ranks(work.model, work.seq_len, layouts),
        "micro_batch": micro_batch,
        "grad_accum": grad_accum,
        "counted_ahead": (grad_accum > 1) * work.counts_ahead,
        "global_batch": micro_batch * grad_accum * layouts.parts("samples"),
        **(stack or {}),
    }
    if work.precision == "fp8" and work.modules is not None:  # only for this project's engines
        values["cast_bytes"] = np.where(values["fused"], values["cast_bytes"], FP8_EAGER_CAST_BYTES)
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    return Columns.of({**_OURS, **arrays})


def from_points(points: Sequence[tuple[Recipe, Layout, BatchPoint]], cluster: ClusterSpec) -> Columns:
    """Returns one row for each (recipe, layout, batch point) on one cluster, in order."""
    rows: dict[Recipe, list[int]] = {}
    for row, (recipe, _, _) in enumerate(points):
        rows.setdefault(recipe, []).append(row)
    parts = [
        features(
            TrainingWork.of(recipe),
            LayoutArrays.of([dict(zip(AXES, _values_of(points[row][1]), strict=True)) for row in members]),
            cluster,
            micro_batch=np.array([points[row][2].micro_batch for row in members], dtype=np.float64),
            grad_accum=np.array([points[row][2].grad_accum for row in members], dtype=np.float64),
        )
        for recipe, members in rows.items()
    ]
    if not parts:
        return Columns.of(dict.fromkeys(FIELDS, np.zeros(0)))
    return joined(parts).take(np.argsort(np.concatenate(list(rows.values())), kind="stable"))


_values_of = operator.attrgetter(*AXES)


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenates the rows of all `parts`; every field has one value per row."""
    rows = [{name: np.broadcast_to(value, part.shape) for name, value in part.arrays().items()} for part in parts]
    return Columns.of({name: np.concatenate([row[name] for row in rows]) for name in FIELDS})


def _of_engine(work: TrainingWork, layouts: LayoutArrays) -> dict[str, Array | Mask | float]:
    """Returns the columns for degrees and engines: parameters, gradients and states."""
    numbers, of_words = layouts.numbers, layouts.of_words
    buckets = numbers("bucket_mib")

    def bucket_bytes(engine: str) -> float:
        engine_costs = costs(engine)
        assert engine_costs is not None, engine
        return engine_costs.bucket_bytes(work.state_bytes, work.compute_bytes)

    return {
        "engine": of_words(code_of, "engine"),
        "zero_stage": numbers("zero_stage"),
        "dp": layouts.parts("samples"),
        **{name: numbers(name) for name in MODEL_PARALLEL},
        "shard": numbers("dp_shard") * layouts.parts("tokens"),
        "sequence_parallel": layouts.parts("width") > 1,
        "sync_every": of_words(lambda word: word == "every", "grad_sync"),
        "states_on_host": of_words(lambda word: word in ("optimizer", "all"), "offload"),
        "parameters_on_host": of_words(lambda word: word == "all", "offload"),
        "moments_on_host": of_words(lambda word: word == "moments", "offload"),
        "bucket_bytes": np.where(buckets > 0, buckets * 2.0**20, of_words(bucket_bytes, "engine")),
        "hidden_gathers": PREFETCH["current"],
        "own_mesh": of_words(has_own_mesh, "engine"),
    }


def _of_kernels(work: TrainingWork, layouts: LayoutArrays, architecture: str) -> dict[str, Array | Mask | float]:
    """Returns the columns for recomputation and kernels on devices of `architecture`."""
    of_words, modules, gated = layouts.of_words, work.modules, work.model.gated
    stepwise = modules.stepwise_activation if modules else None
    biased, position = modules is not None and modules.position == "alibi", work.model.position
    masked, parts = work.mask_density is not None, _query_parts(layouts) > 1
    fused = of_words(lambda word: word != "none", "compile")

    def passes(compile_: str, mlp: str) -> tuple[float, float]:
        fused = compile_ != "none"
        joined, casts = work.model.num_experts > 0, work.precision == "fp8"
        return activation_passes(stepwise, gated=gated, fused=fused, joined=joined, mlp=mlp, casts=casts)

    def copies(compile_: str, mlp: str) -> float:
        return inner_copies(stepwise, gated=gated, fused=compile_ != "none", mlp=mlp)

    def spans(attention: str) -> float:
        if work.mask_density is not None:
            return mask_speedup(attention, work.mask_density)
        return window_speedup(attention, work.model, work.seq_len, architecture)

    def flash(attention: str, *, masked: bool) -> float:
        # For sdpa a context-parallel rank's part of the queries needs a mask, with or without windows.
        share = flash_share(
            attention, alibi=biased, masked=masked, head_dim=work.model.head_dim, architecture=architecture
        )
        return share * (1.0 if masked and attention == "sdpa" else spans(attention))

    return {
        "full_checkpointing": of_words(is_full_checkpointing, "checkpointing"),
        "selective_checkpointing": of_words(lambda word: word == "selective", "checkpointing"),
        "checkpoint_every": of_words(checkpoint_distance, "checkpointing"),
        "budget": of_words(activation_budget, "checkpointing"),
        "flash": np.where(
            parts,
            of_words(lambda word: flash(word, masked=True), "attention"),
            of_words(lambda word: flash(word, masked=masked), "attention"),
        ),
        "mask_bytes": _mask_bytes(work, layouts, biased=biased),
        "wide_softmax": modules is None or modules.fp32_softmax,
        "scales_scores": position == "rotary" or (modules is not None and modules.position == "learned"),
        "power_activation": of_words(
            lambda word: word == "plain" and stepwise is not None and stepwise.takes_power, "mlp"
        ),
        "fused": fused,
        "fused_softmax": fused,
        "compiled_calls": of_words(lambda word: compiled_calls(word, work.model.num_layers), "compile")
        * np.where(layouts.parts("experts") > 1, PARTS_AROUND_EXPERTS, 1.0),
        "inner_copies": of_words(copies, "compile", "mlp"),
        "activation_forward": of_words(lambda *words: passes(*words)[0], "compile", "mlp"),
        "activation_backward": of_words(lambda *words: passes(*words)[1], "compile", "mlp"),
        "grouped_experts": of_words(lambda word: word == "grouped", "experts"),
        "logit_bytes": _logit_bytes(work, layouts),
        "pads_vocabulary": of_words(lambda *words: pads_vocabulary(loss_kind(*words)), "loss", "compile"),
        "chunked_loss": of_words(lambda word: word != "plain", "loss"),
    }


def _logit_bytes(work: TrainingWork, layouts: LayoutArrays) -> Array:
    unsplit, split = (
        layouts.of_words(
            lambda *words, split=split: logit_bytes(loss_kind(*words), work.compute_bytes, split=split),
            "loss",
            "compile",
        )
        for split in (False, True)
    )
    return np.where(layouts.parts("width") > 1, split, unsplit)


def _mask_bytes(work: TrainingWork, layouts: LayoutArrays, *, biased: bool) -> Array:
    """Returns the bytes of one sequence's attention mask on a rank, if each sequence has its own: one value per score,
    or per score and head if the mask contains a position bias. FlexAttention's mask is a list of blocks.
    """
    if work.mask_density is None:
        return np.zeros(())
    value = {"eager": 4.0, "sdpa": work.compute_bytes if biased else 1.0, "flex": 0.0, "flash4": 0.0}
    heads = np.where(
        layouts.of_words(lambda word: biased and word == "sdpa", "attention") > 0,
        work.model.num_heads / layouts.parts("width"),
        1.0,
    )
    # Ranks that exchange heads share the biases of the heads; a mask for all heads is on every rank.
    parts = np.where(heads > 1, layouts.parts("tokens"), _query_parts(layouts))
    return layouts.of_words(value.__getitem__, "attention") * heads * work.seq_len**2 / parts


def _query_parts(layouts: LayoutArrays) -> Array:
    """Returns the number of parts of a sequence's queries in attention (`Layout.query_parts`)."""
    gathers = layouts.of_words(lambda word: word == "gather", "cp_exchange")
    return np.where(gathers > 0, layouts.parts("tokens"), 1.0)


def _of_model(model: ModelSpec) -> dict[str, Array | float]:
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "attention_width": model.attention_width,
        "kv_width": model.num_kv_heads * model.head_dim,
        "heads": model.num_heads,
        **_of_blocks(model),
        "rotary": model.position == "rotary",
        "vocab": model.vocab_size,
        "embedding_parameters": model.embedding_parameters,
        "table_parameters": model.vocab_size * model.hidden_size,
        "tied": bool(model.tied_embeddings),
    }


def _of_blocks(model: ModelSpec) -> dict[str, Array | float]:
    """Returns the columns for the model's kinds of blocks; sizes of absent kinds are 0."""
    values: dict[str, Array | float] = {
        **dict.fromkeys(BLOCK_COLUMNS, 0.0),
        "layer_parameters": model.over_blocks(lambda kind: kind.parameters(model)) / model.num_layers,
        "last_product": max(kind.last_product(model) for kind, _ in model.blocks),
        "saved_weights": model.over_blocks(lambda kind: kind.saved_weights(model)) / model.num_layers,
    }
    for kind, count in model.blocks:
        values |= {name: size(model) for name, size in kind.sizes.items()}
        values[f"{kind.costs}_share"] += count / model.num_layers
    return values


def _of_cluster(
    cluster: ClusterSpec, precision: str, head_dim: int, product_share: float = 1.0
) -> dict[str, Array | float]:
    """Returns the columns of a cluster for products in `precision` (FP8 at `product_share` of its usual rate) and heads
    of width `head_dim`.
    """
    device = cluster.device
    peak = device.peak_tflops(precision) * 1e12
    share = device.matmul_share * (FP8_SHARE * product_share if precision == "fp8" else 1.0)
    if precision == "fp32":
        share = PLAIN_SHARE
    half_type = "fp16" if precision in ("fp16", "fp8") else "bf16"
    half = device.peak_tflops(half_type) * device.scale(half_type) * 1e12
    return {
        "matmul_flops": peak * share * device.scale(precision),
        # The head's products stay in 16 bits.
        "head_slowdown": peak * share / (device.peak_tflops("bf16") * 1e12 * device.matmul_share)
        if precision == "fp8"
        else 1.0,
        "cast_bytes": FP8_CAST_BYTES if precision == "fp8" and "fp8" in device.tflops else 0.0,
        # Products on the matrix units start and end slowly: they pass through shared memory in long pipelines.
        "tile_rows": 128 if precision == "fp32" else 256,
        "half_depth": 32 if precision == "fp32" else HALF_DEPTH.get(device.architecture, HALF_DEPTH["other"]),
        "plain_flops": device.peak_tflops("fp32") * device.scale("fp32") * 1e12 * device.matmul_share,
        "peak_flops": peak,
        # Traces have products of 16 bits alone. Others take another energy, and where they reach the cap is not known;
        # attention's rate, which the share counts with theirs, is one of 16 bits too. Other software's rates contain
        # its own mix of products and passes.
        "power_share": device.power_share
        if device.power_share and precision in ("bf16", "fp16") and cluster.software == THIS_PROJECT
        else math.inf,
        "flash_flops": half * device.flash_share * width_share(head_dim, device.architecture),
        "flash_half_length": half_length(device.architecture),
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
        "inter_hop": cluster.inter_hop_s,
        "spread": math.hypot(cluster.spread, device_sigma(device)),
        "link_sigma": cluster.link_sigma if cluster.num_nodes > 1 else 0.0,
    }
