"""All layout x batch points of a recipe on a cluster, as columns: products of axes, filtered by what can run."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from platform.cost_model.columns import ENGINES, FIELDS, Array, Columns
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.values import (
    PREFETCH,
    ROUNDING,
    activation_passes,
    checkpointing_values,
    cluster_values,
    compiled_calls,
    default_bucket_bytes,
    inner_copies,
    logit_bytes,
    loss_kind,
    recipe_values,
)
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

ENGINE_STAGES = (
    ("ddp", 0, "last"),
    ("fsdp", 3, "every"),
    ("fsdp", 3, "last"),
    ("fsdp", 2, "every"),
    ("deepspeed", 0, "last"),
    ("deepspeed", 1, "last"),
    ("deepspeed", 2, "every"),
    ("deepspeed", 3, "every"),
)
"""(engine, zero_stage, grad_sync) that `Layout` allows."""

UNDIVIDED = "micro-batch x data-parallel ranks do not divide the global batch"
"""Why a point is skipped that a search skips for its batch alone."""

MICRO_BATCHES = tuple(2**power for power in range(8))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """What is varied; each axis is a tuple of values."""

    engine_stages: tuple[tuple[str, int, str], ...] = ENGINE_STAGES
    tp: tuple[int, ...] = (1, 2, 4, 8)
    pp: tuple[int, ...] = ()
    """Empty for every degree that cuts the blocks evenly."""
    cp: tuple[int, ...] = (1,)
    virtual_stages: tuple[int, ...] = (1,)
    checkpointing: tuple[str, ...] = ("none", "selective", "full")
    flash: tuple[bool, ...] = (False, True)
    compile: tuple[str, ...] = ("none", "block")
    chunked_loss: tuple[bool, ...] = (False, True)
    micro_batches: tuple[int, ...] = MICRO_BATCHES


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Enumeration:
    """The points that can run, and how many could not, by reason."""

    grid: Columns
    """Fields of [rows] for what must divide something, and with one axis each, before that of rows, for what is free
    (checkpointing, attention, compiling, loss): a formula is computed over the axes that it depends on alone.
    `predict` takes it as it is; its rows are those of `columns`."""
    skipped: tuple[tuple[str, int], ...]
    num_points: int
    """Points looked at."""

    @property
    def columns(self) -> Columns:
        """A row a point; made at each call."""
        return self.grid.flat()


def pipeline_degrees(num_layers: int, num_devices: int) -> tuple[int, ...]:
    """Degrees that cut the blocks evenly, with embedding and head counted as blocks or not, within the devices."""
    return tuple(
        degree
        for degree in range(1, min(num_layers, num_devices) + 1)
        if num_devices % degree == 0 and (num_layers % degree == 0 or (num_layers + 2) % degree == 0)
    )


def enumerate_points(recipe: Recipe, cluster: ClusterSpec, axes: Axes | None = None) -> Enumeration:
    """Columns of every point of `axes` that divides devices, heads, blocks and the global batch."""
    axes = axes or Axes()
    devices = cluster.num_devices
    degrees = axes.pp or pipeline_degrees(recipe.model.num_layers, devices)
    model = recipe.model
    # What must divide something, one broadcastable array an axis; the free axes multiply what is left.
    bound = (
        np.arange(len(axes.engine_stages)),
        np.array(axes.tp),
        np.array(degrees or (1,)),
        np.array(axes.cp),
        np.array(axes.virtual_stages),
        np.array(axes.micro_batches),
    )
    combo, tp, pp, cp, vp, micro_batch = np.ix_(*bound)
    num_free = math.prod(map(len, (axes.checkpointing, axes.flash, axes.compile, axes.chunked_loss)))
    stage_of = np.array([stage for _, stage, _ in axes.engine_stages])
    stage = stage_of[combo]
    every = np.array([sync == "every" for _, _, sync in axes.engine_stages])[combo]
    is_deepspeed = np.array([engine == "deepspeed" for engine, _, _ in axes.engine_stages])[combo]
    model_parallel = tp * pp * cp
    dp = devices // model_parallel
    rest = recipe.global_batch // np.maximum(micro_batch * dp, 1)
    reasons = (
        ("degrees do not divide the devices", devices % model_parallel == 0),
        ("tp does not divide the heads", (model.num_heads % tp == 0) & (model.num_kv_heads % tp == 0)),
        ("tp reaches across nodes", tp <= cluster.devices_per_node),
        ("cp does not divide the sequence", (cp == 1) | (recipe.seq_len % (2 * cp) == 0)),
        (
            UNDIVIDED,
            rest * micro_batch * dp == recipe.global_batch,
        ),
        ("ZeRO stages 2 and 3 under a pipeline", (pp == 1) | (stage <= 1)),
        ("grad_sync means nothing on one data-parallel rank", (dp > 1) | ~every | is_deepspeed),
        ("virtual stages do not cut a stage's blocks", (vp == 1) | ((pp > 1) & (model.num_layers % (pp * vp) == 0))),
    )
    left = np.ones(tuple(len(axis) for axis in bound), dtype=bool)
    skipped: list[tuple[str, int]] = []
    before = left.size
    for reason, holds in reasons:
        left &= holds
        now = int(np.count_nonzero(left))
        skipped.append((reason, (before - now) * num_free))
        before = now
    index = np.nonzero(left)
    combos = index[0]
    kept = {
        name: bound[axis][index[axis]].astype(np.float64)
        for axis, name in enumerate(("tp", "pp", "cp", "virtual_stages", "micro_batch"), start=1)
    }
    kept_dp = devices / (kept["tp"] * kept["pp"] * kept["cp"])
    kept_stage = stage_of[combos].astype(np.float64)
    engine = np.array([ENGINES.index(name) for name, _, _ in axes.engine_stages])[combos].astype(np.float64)
    shard = np.where(kept_stage > 0, kept_dp * kept["cp"], 1.0)
    fixed = recipe_values(recipe) | cluster_values(cluster, recipe.compute_precision)
    state, compute = fixed["state_bytes"], fixed["compute_bytes"]
    fixed |= {
        "offload": 0,
        "blocks_ahead": 0,
        "overlaps": 0,
        "checkpoint_blocks": 1,
        "kept_checkpoints": 1,
        "dropout": 0,
        "metric_losses": 0,
        "blocking": 0,
        "wide_softmax": float(model.architecture != "gpt2"),
        "rounding": ROUNDING["expandable"],
        "prefetch": PREFETCH["current"],
        "reduces_whole": 1,
        "gradient_bytes": state,
    }
    buckets = np.array([default_bucket_bytes(name, state, compute) for name in ENGINES])
    arrays = {name: np.asarray(float(value)) for name, value in fixed.items()} | kept
    arrays |= {
        "engine": engine,
        "zero_stage": kept_stage,
        "dp": kept_dp,
        "shard": shard,
        "reshard": shard,
        "sequence_parallel": (kept["tp"] > 1).astype(np.float64),
        "sync_every": np.array([float(sync == "every") for _, _, sync in axes.engine_stages])[combos],
        "bucket_bytes": buckets[engine.astype(np.int64)],
        "grad_accum": recipe.global_batch / (kept["micro_batch"] * kept_dp),
        **_free_fields(axes, model, compute),
    }
    return Enumeration(
        grid=Columns(**{name: arrays[name] for name in FIELDS}),
        skipped=tuple((reason, count) for reason, count in skipped if count),
        num_points=left.size * num_free,
    )


def _free_fields(axes: Axes, model: ModelSpec, compute_bytes: float) -> dict[str, Array]:
    """Fields of the axes that divide nothing, of [checkpointing, attention, compiling, loss, 1]."""

    def along(axis: int, values: Sequence[float]) -> Array:
        return np.array(values, dtype=np.float64).reshape([-1 if each == axis else 1 for each in range(5)])

    compiled = [name != "none" for name in axes.compile]
    checkpoints = [checkpointing_values(name) for name in axes.checkpointing]
    passes = [activation_passes(model.architecture, model.gated, each) for each in compiled]
    losses = [
        [logit_bytes(loss_kind(chunked, name), compute_bytes) for chunked in axes.chunked_loss] for name in axes.compile
    ]
    return {
        **{name: along(0, [each[name] for each in checkpoints]) for name in checkpoints[0]},
        "flash": along(1, axes.flash),
        "fused": along(2, compiled),
        "compiled_calls": along(2, [compiled_calls(name, model.num_layers) for name in axes.compile]),
        "inner_copies": along(2, [inner_copies(model.architecture, each) for each in compiled]),
        **{name: along(2, [each[name] for each in passes]) for name in passes[0]},
        "logit_bytes": np.array(losses)[:, :, None],
        "chunked_loss": along(3, axes.chunked_loss),
    }
