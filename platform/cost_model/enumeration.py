"""All layout x batch points of a recipe on a cluster, as columns: products of axes, filtered by what can run."""

import dataclasses

import numpy as np

from platform.cost_model.columns import COMPILE, ENGINES, FIELDS, Array, Columns
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.values import (
    PREFETCH,
    ROUNDING,
    activation_passes,
    checkpointing_values,
    cluster_values,
    default_bucket_bytes,
    inner_copies,
    logit_bytes,
    loss_kind,
    recipe_values,
)
from trainers.recipe import Recipe

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
    """Fields of [rows, 1] for what must divide something and of [1, points a row] for what is free: a formula over the
    former alone is computed once a row. `predict` takes it as it is; its rows are those of `columns`."""
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
    checkpointing, flash, compiled, chunked = (
        axis.ravel()
        for axis in np.meshgrid(
            range(len(axes.checkpointing)),
            axes.flash,
            [COMPILE.index(name) for name in axes.compile],
            axes.chunked_loss,
            indexing="ij",
        )
    )
    num_free = len(checkpointing)
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
        ("cp does not divide the sequence", recipe.seq_len % (2 * cp) == 0),
        (
            "micro-batch x data-parallel ranks do not divide the global batch",
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

    def of_axis(axis: int) -> Array:
        return bound[axis][index[axis]].astype(np.float64)[:, None]

    def free(values: np.ndarray) -> Array:
        return values.astype(np.float64)[None, :]

    kept_combo = index[0][:, None]
    kept = {
        name: of_axis(axis) for axis, name in enumerate(("tp", "pp", "cp", "virtual_stages", "micro_batch"), start=1)
    }
    kept_dp = devices / (kept["tp"] * kept["pp"] * kept["cp"])
    kept_stage = stage_of[kept_combo].astype(np.float64)
    engine = np.array([ENGINES.index(name) for name, _, _ in axes.engine_stages])[kept_combo].astype(np.float64)
    fixed = recipe_values(recipe) | cluster_values(cluster, recipe.compute_precision)
    state, compute = fixed["state_bytes"], fixed["compute_bytes"]
    fixed |= {
        "offload": 0,
        "blocks_ahead": 0,
        "overlaps": 0,
        "checkpoint_blocks": 1,
        "kept_checkpoints": 1,
        "dropout": 0,
        "blocking": 0,
        "wide_softmax": float(model.architecture != "gpt2"),
        "rounding": ROUNDING["expandable"],
        "prefetch": PREFETCH["current"],
    }
    per_logit = [
        logit_bytes(loss_kind(bool(cut), COMPILE[code]), compute) for cut, code in zip(chunked, compiled, strict=True)
    ]
    checkpoints = [checkpointing_values(axes.checkpointing[code]) for code in checkpointing]
    passes = [activation_passes(model.architecture, model.gated, bool(code)) for code in compiled]
    copies = [inner_copies(model.architecture, bool(code)) for code in compiled]
    buckets = np.array([default_bucket_bytes(name, state, compute) for name in ENGINES])
    arrays = {name: np.asarray(float(value)) for name, value in fixed.items()}
    arrays |= kept
    arrays |= {
        "engine": engine,
        "zero_stage": kept_stage,
        "dp": kept_dp,
        "shard": np.where(kept_stage > 0, kept_dp * kept["cp"], 1.0),
        "reshard": np.where(kept_stage > 0, kept_dp * kept["cp"], 1.0),
        "sequence_parallel": (kept["tp"] > 1).astype(np.float64),
        "sync_every": np.array([float(sync == "every") for _, _, sync in axes.engine_stages])[kept_combo],
        "bucket_bytes": buckets[engine.astype(np.int64)],
        "gradient_bytes": np.asarray(state),
        "grad_accum": recipe.global_batch / (kept["micro_batch"] * kept_dp),
        **{name: free(np.array([each[name] for each in checkpoints])) for name in checkpoints[0]},
        "flash": free(flash),
        "fused": free((compiled > 0).astype(np.int64)),
        "inner_copies": free(np.array(copies)),
        **{name: free(np.array([each[name] for each in passes])) for name in passes[0]},
        "logit_bytes": free(np.array(per_logit)),
        "chunked_loss": free(chunked),
    }
    return Enumeration(
        grid=Columns(**{name: arrays[name] for name in FIELDS}),
        skipped=tuple((reason, count) for reason, count in skipped if count),
        num_points=left.size * num_free,
    )
