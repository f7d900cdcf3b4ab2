"""The best predicted layouts of a recipe on a cluster, why the others lose, and what is skipped."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from platform.common.errors import InputError
from platform.cost_model.columns import CHECKPOINTING, ENGINES, LOGIT_BYTES, Array, Columns
from platform.cost_model.enumeration import UNDIVIDED, Axes, enumerate_points
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.memory import PHASES, peak_parts
from platform.cost_model.predict import Prediction, predict
from search_spaces.space import Space
from trainers.engines import rules_of
from trainers.layout import Layout
from trainers.recipe import Recipe

DAY_S = 86400.0
PARTS = {
    "compute": ("compute_s", "attention_s", "optimizer_s"),
    "host": ("host_s",),
    "communication": ("tensor_s", "pipeline_s", "data_s"),
    "bubble": ("bubble_s",),
}
"""What a step's seconds are told as."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One layout at its best micro-batch."""

    layout: Layout
    micro_batch: int
    grad_accum: int
    step_s: float
    low_s: float
    high_s: float
    """80 % interval."""
    tokens_per_s: float
    mfu: float
    """Share of the datasheet peak, model FLOPs "6n_causal"."""
    peak_tflops: float
    """Of one device, in the recipe's precision."""
    needed_gib: float
    """Memory a device must have: the largest rank's peak, context and communicators."""
    fit_probability: float
    shares: Mapping[str, float]
    """Share of the step by `PARTS`."""
    loses_by: str
    """What costs it most against the best one; "" for the best."""

    def days(self, tokens: float) -> float:
        """Days to train on `tokens`."""
        return tokens / self.tokens_per_s / DAY_S


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Layouts, the fastest first, and what was left aside."""

    recipe: Recipe
    cluster: ClusterSpec
    best: tuple[Planned, ...]
    num_layouts: int
    """Layouts with a point that fits."""
    num_too_large: int
    """Layouts that lose by memory: no micro-batch of theirs fits."""
    lost_by: tuple[tuple[str, int], ...]
    """(what costs them most against the best one, layouts) of those that have a point that fits, by `PARTS`."""
    num_points: int
    skipped: tuple[tuple[str, int], ...]
    """(reason, points)."""
    nearest: str
    """What came nearest to fitting, as a clause; of use where nothing fits."""


def axes_of(space: Space, recipe: Recipe) -> Axes:
    """The space's axes for the enumeration: what its layouts name, everything else at `Layout`'s plain values."""
    axes = space.axes

    def values(name: str, plain: Any) -> tuple[Any, ...]:
        return tuple(axes.get(name, (plain,)))

    combinations: list[tuple[str, int, str]] = []
    for engine in values("engine", "fsdp"):
        for stage in values("zero_stage", 0):
            syncs = rules_of(engine).grad_syncs.get(stage, ())
            wanted = syncs if len(syncs) < 2 else values("grad_sync", "last")
            combinations += [(engine, stage, sync) for sync in wanted]
    attention = values("attention", "eager")
    points = [point.micro_batch for point in space.points]
    return Axes(
        engine_stages=tuple(dict.fromkeys(combinations)) or (("ddp", 0, "last"),),
        tp=values("tp", 1),
        pp=values("pp", 1),
        cp=values("cp", 1),
        checkpointing=values("checkpointing", "none"),
        flash=tuple(sorted({name != "eager" for name in attention})),
        compile=values("compile", "none"),
        chunked_loss=tuple(sorted({name == "chunked" for name in values("loss", "plain")})),
        micro_batches=tuple(sorted({*space.micro_batches, *points})),
    )


def with_whole_batch(recipe: Recipe, num_devices: int) -> Recipe:
    """`recipe` with its global batch rounded up, so that any degree that divides the devices divides it."""
    return dataclasses.replace(recipe, global_batch=-(-recipe.global_batch // num_devices) * num_devices)


def batch_hint(skipped: Sequence[tuple[str, int]], recipe: Recipe, cluster: ClusterSpec) -> str:
    """Where points were skipped because ranks do not share the global batch, one that they would, as a clause."""
    other = with_whole_batch(recipe, cluster.num_devices).global_batch
    if other == recipe.global_batch or not any(reason == UNDIVIDED for reason, _ in skipped):
        return ""
    return f"; {cluster.num_devices} ranks would share --set global_batch={other}"


def fused_attention(space: Space) -> str:
    """The space's name for fused attention; "sdpa" where it has none."""
    return next((name for name in space.axes.get("attention", ()) if name != "eager"), "sdpa")


def layout_at(columns: Columns, row: int, *, attention: str) -> Layout:
    """The `Layout` of one row of an enumeration."""

    def value(name: str) -> float:
        array: Array = getattr(columns, name)
        return float(array) if array.ndim == 0 else float(array[row])

    engine = ENGINES[int(value("engine"))]
    whole = bool(np.broadcast_to(_whole(columns), columns.shape)[row])
    stage, dp = int(value("zero_stage")), int(value("dp"))
    return Layout(
        engine=engine,  # type: ignore[arg-type]
        zero_stage=stage,
        dp_replicate=1 if stage else dp,
        dp_shard=dp if stage else 1,
        tp=int(value("tp")),
        pp=int(value("pp")),
        cp=int(value("cp")),
        grad_sync="every" if value("sync_every") else "last",
        checkpointing=_checkpointing(*map(value, ("checkpointing", "checkpoint_every", "budget"))),  # type: ignore[arg-type]
        attention=attention if value("flash") else "eager",  # type: ignore[arg-type]
        loss="chunked" if value("chunked_loss") else "plain",
        compile=("model" if whole else "block") if value("fused") else "none",  # type: ignore[arg-type]
    )


def _refused(columns: Columns, attention: str) -> "np.ndarray":
    """Rows that `trainers.support` refuses for kernels or compression, where fused attention is `attention`."""
    compiled = columns.fused > 0
    zero_3 = (columns.engine == ENGINES.index("deepspeed")) & (columns.zero_stage == 3)
    fsdp = columns.engine == ENGINES.index("fsdp")
    hidden = (columns.checkpointing == CHECKPOINTING.index("selective")) & (columns.flash > 0) & (attention == "flex")
    alone = (columns.budget < 1) & ~compiled
    kernels = alone | (compiled & (zero_3 | (_whole(columns) & fsdp))) | (hidden & ~compiled)
    uncompressed = (columns.engine != ENGINES.index("ddp")) | ((columns.factor_rank > 0) & (columns.sync_every > 0))
    return np.broadcast_to(kernels | ((columns.compression < 1) & uncompressed), columns.shape)


def _whole(columns: Columns) -> "np.ndarray":
    """Rows of models compiled whole, which their loss tells; a chunked loss is compiled with blocks alone."""
    return (columns.fused > 0) & (columns.chunked_loss == 0) & (columns.logit_bytes == LOGIT_BYTES["compiled"])


def _checkpointing(code: float, every: float, budget: float) -> str:
    """The layout's word of these columns."""
    if budget < 1:
        return f"budget_{100 * budget:.0f}"
    return f"every_{every:.0f}" if every > 1 else CHECKPOINTING[int(code)]


def best_plan(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    *,
    top: int = 10,
    memory_cap_gib: float | None = None,
    axes: Axes | None = None,
) -> Plan:
    """Predicts every point of the space and keeps the `top` layouts, each at its fastest micro-batch that fits."""
    axes = axes or axes_of(space, recipe)
    points = enumerate_points(recipe, cluster, axes)
    grid = points.grid
    if memory_cap_gib is not None:
        grid = dataclasses.replace(grid, capacity_gib=np.minimum(grid.capacity_gib, memory_cap_gib))
    columns = grid.flat()
    if not columns.shape or columns.shape[0] == 0:
        told = "; ".join(f"{reason} ({count:,} points)" for reason, count in points.skipped)
        told += batch_hint(points.skipped, recipe, cluster)
        raise InputError(f"no layout of {space.name} stands on {cluster.num_devices} x {cluster.device.name}: {told}")
    prediction = predict(grid)
    attention = fused_attention(space)
    refused = _refused(columns, attention)
    runs = np.asarray(prediction.fits) & ~refused
    fits = runs & (prediction.ok_probability > 0.5)
    skipped = [*points.skipped]
    if refused.any():
        skipped.append(("kernels that an engine refuses together", int(refused.sum())))
    if not runs.all():
        skipped.append(("predicted out of memory", int((~runs & ~refused).sum())))
    if (runs & ~fits).any():
        skipped.append(("predicted to thrash: the allocator's pools exceed the device", int((runs & ~fits).sum())))
    rows = _fastest_rows(columns, prediction, fits)
    planned: list[Planned] = []
    for row in rows[:top]:
        layout = layout_at(columns, int(row), attention=attention)
        planned.append(planned_at(recipe, cluster, columns, prediction, int(row), int(rows[0]), layout))
    return Plan(
        recipe=recipe,
        cluster=cluster,
        best=tuple(planned),
        num_layouts=len(rows),
        num_too_large=len(_fastest_rows(columns, prediction, ~refused)) - len(rows),
        lost_by=_lost_by(prediction, rows),
        num_points=points.num_points,
        skipped=tuple(skipped),
        nearest=_nearest(columns, prediction, attention=attention),
    )


def _fastest_rows(columns: Columns, prediction: Prediction, fits: "np.ndarray") -> "np.ndarray":
    """The fitting row of each layout with the least expected time, the least of all first."""
    names = ("engine", "zero_stage", "tp", "pp", "cp", "sync_every", "checkpointing", "checkpoint_every")
    names += ("budget", "flash", "fused", "chunked_loss", "logit_bytes")
    rows = np.flatnonzero(fits)
    if not len(rows):
        return rows
    key = np.zeros(len(rows))
    for name in names:
        values: Array = np.broadcast_to(getattr(columns, name), columns.shape)[rows]
        key = key * (float(values.max()) + 1) + values
    order = np.lexsort((prediction.expected_s[rows], key))
    _, first = np.unique(key[order], return_index=True)
    kept = rows[order[first]]
    return kept[np.argsort(prediction.expected_s[kept], kind="stable")]


def _seconds(prediction: Prediction, row: int) -> dict[str, float]:
    return {part: float(sum(getattr(prediction.step, name)[row] for name in names)) for part, names in PARTS.items()}


def _lost_by(prediction: Prediction, rows: "np.ndarray") -> tuple[tuple[str, int], ...]:
    """What each of `rows` loses by against the first, counted."""
    seconds = np.stack([sum(getattr(prediction.step, name)[rows] for name in names) for names in PARTS.values()])
    worst = np.argmax(seconds[:, 1:] - seconds[:, :1], axis=0)
    return tuple((part, int((worst == index).sum())) for index, part in enumerate(PARTS) if (worst == index).any())


def planned_at(
    recipe: Recipe,
    cluster: ClusterSpec,
    columns: Columns,
    prediction: Prediction,
    row: int,
    best: int,
    layout: Layout,
) -> Planned:
    """The plan of one row, whose layout is `layout`; `best` is the row that it is held against."""
    total = float(prediction.step.total_s[row])
    seconds, winner = _seconds(prediction, row), _seconds(prediction, best)
    loses_by = "" if row == best else max(PARTS, key=lambda part: seconds[part] - winner[part])
    tokens = recipe.tokens_per_step
    flops = recipe.model.flops_per_token(recipe.seq_len, "6n_causal") * tokens
    peak = cluster.device.peak_tflops(recipe.compute_precision) * 1e12 * cluster.num_devices
    return Planned(
        layout=layout,
        micro_batch=int(columns.micro_batch[row]),
        grad_accum=int(columns.grad_accum[row]),
        step_s=total,
        low_s=float(prediction.low_s[row]),
        high_s=float(prediction.high_s[row]),
        tokens_per_s=tokens / total,
        mfu=flops / total / peak,
        peak_tflops=cluster.device.peak_tflops(recipe.compute_precision),
        needed_gib=float(prediction.memory.needed_gib[row]),
        fit_probability=float(prediction.fit_probability[row]),
        shares={part: value / total for part, value in seconds.items()},
        loses_by=loses_by,
    )


def _nearest(columns: Columns, prediction: Prediction, *, attention: str) -> str:
    """The point that needs least memory, with what it is made of."""
    row = int(np.argmin(prediction.memory.needed_gib / columns.capacity_gib))
    layout = layout_at(columns, row, attention=attention)
    parts = peak_parts(columns.take(np.array([row])))
    told = ", ".join(
        f"{name.replace('_', ' ')} {float(np.ravel(value)[0]):.1f}"
        for name, value in dataclasses.asdict(parts).items()
        if float(np.ravel(value)[0]) >= 0.05
    )
    phase = PHASES[int(prediction.memory.phase[row])].replace("_", " ")
    capacity = float(np.broadcast_to(columns.capacity_gib, columns.shape)[row])
    return (
        f"nearest is {layout.label} at micro-batch {int(columns.micro_batch[row])}, which needs"
        f" {float(prediction.memory.needed_gib[row]):.1f} GiB of {capacity:.1f} ({phase}: {told})"
    )
