"""Ranks the predicted layouts of a recipe on a cluster; explains slower and skipped ones."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from platform.common.errors import InputError
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.hardware import THIS_PROJECT, ClusterSpec
from platform.cost_model.listed_ends import listed_ends
from platform.cost_model.memory import PHASES, peak_parts
from platform.cost_model.placement import misplaced
from platform.cost_model.predict import SURE, Prediction, predict
from platform.plan.alike import distinct_rows
from platform.plan.offers import refusal
from platform.plan.planned import AS_FAST, PARTS, LayoutPlan, PredictedLayout
from platform.plan.points import UNDIVIDED, PlanPoints, points_of
from platform.plan.projection import StudyPrior
from platform.plan.software import distinct, planned_columns
from search_spaces.reasons import names_value
from search_spaces.shared_batch import shared_batch
from search_spaces.space import Space
from trainers.data.mask_density import keys_per_query
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

Rows = npt.NDArray[np.int64]

_MOST_REASONS = 2
"""Number of most frequent reasons to list when no layout can run on a cluster."""


def with_whole_batch(space: Space, recipe: Recipe, num_devices: int) -> Recipe:
    """Returns `recipe` with the nearest global batch that `num_devices` can share evenly."""
    batch = shared_batch(recipe.global_batch, (num_devices,), space.micro_batches, recipe.seq_len)
    return dataclasses.replace(recipe, global_batch=batch)


def batch_hint(skipped: Sequence[tuple[str, int]], space: Space, recipe: Recipe, cluster: ClusterSpec) -> str:
    """Returns a clause that suggests a global batch with which a layout fits, if points were skipped because the
    devices cannot share the batch of `recipe` evenly; otherwise "".
    """
    other = with_whole_batch(space, recipe, cluster.num_devices)
    if other == recipe or not any(reason == UNDIVIDED for reason, _ in skipped):
        return ""
    points = points_of(space, other, cluster)
    if not points.layouts or not (best := _best_of(space, points, cluster, 1, None).best):
        return ""
    return (
        f"; with --set global_batch={other.global_batch} {cluster.num_devices} devices run {best[0].layout.label}, at"
        f" {best[0].tokens_per_s:,.0f} tokens/s"
    )


def best_plan(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    *,
    top: int = 10,
    taught: StudyPrior | None = None,
    fullest: float = 1.0,
) -> LayoutPlan:
    """Returns the `top` layouts of the space by prediction, each at its fastest micro-batch that fits.

    If no layout of the space fits, all possible degrees are tried. With `taught`, step times are corrected by the
    study's measurements, and measured points keep their measured time. `fullest` is the number of token rows on the
    rank with the most, divided by the mean, for experts split over ranks.

    Raises:
        InputError: no layout of the space can run on the cluster.
    """
    points = points_of(space, recipe, cluster)
    if points.layouts:
        plan = _best_of(space, points, cluster, top, taught, fullest)
        if plan.best:
            return plan
    further = points_of(space, recipe, cluster, "all")
    if not further.layouts:
        raise InputError(_no_layout(points, space, cluster))
    return _best_of(space, further, cluster, top, taught, fullest)


def _best_of(
    space: Space,
    points: PlanPoints,
    cluster: ClusterSpec,
    top: int,
    taught: StudyPrior | None,
    fullest: float = 1.0,
) -> LayoutPlan:
    """Returns the `top` layouts of non-empty `points`; see `best_plan`."""
    recipe = points.recipe
    columns = points.columns(cluster).with_fullest(fullest)
    prediction = predict(columns)
    projection = None
    if taught is not None:
        projection = taught.project(points.of_recipe, columns, prediction, cluster)
        prediction = projection.prediction
        if not taught.memory_capped:
            certain = {
                name: np.where(projection.measured, 1.0, getattr(prediction, name))
                for name in ("fit_probability", "ok_probability")
            }
            prediction = dataclasses.replace(prediction, **certain)
    runs = prediction.fits
    fits = runs & (prediction.ok_probability > 0.5)
    sure = prediction.ok_probability >= SURE
    seconds_per_token = prediction.step.total_s / columns.tokens_per_step
    rows = _fastest_rows(points.layouts, seconds_per_token, fits, sure)
    num_too_large = len(set(points.layouts)) - len(rows)
    if cluster.software != THIS_PROJECT:
        rows = np.array(distinct(columns, rows.tolist()), dtype=np.int64)

    def planned(row: int) -> PredictedLayout:
        predicted = planned_at(recipe, points.layouts[row], points.batches[row], cluster, prediction, row, int(rows[0]))
        return dataclasses.replace(predicted, measured=projection is not None and bool(projection.measured[row]))

    figures = np.stack(
        [prediction.step.total_s, prediction.memory.needed_gib, prediction.ok_probability, columns.micro_batch], axis=1
    )
    return LayoutPlan(
        recipe=recipe,
        cluster=cluster,
        best=tuple(planned(int(row)) for row in rows[:top]),
        distinct=tuple((planned(row), others) for row, others in distinct_rows(rows, points.layouts, figures, top)),
        faster_if_it_fits=None
        if (faster := _faster(seconds_per_token, fits & ~sure, rows)) is None
        else planned(faster),
        num_layouts=len(rows),
        num_too_large=num_too_large,
        lost_by=_counted_losses(prediction, rows),
        num_points=points.num_points,
        skipped=(*points.skipped, *_predicted_to_fail(runs, fits)),
        nearest=_nearest(points, columns, prediction),
        learned="" if projection is None else projection.sentence,
        at_ends=_at_ends(space, points, prediction, int(rows[0]), cluster) if len(rows) else (),
    )


def _no_layout(points: PlanPoints, space: Space, cluster: ClusterSpec) -> str:
    """Returns the sentence that no layout of `points` can run on the cluster, with the most frequent reasons, before
    them those that name a value which the user chose.
    """
    chosen = [(axis, value) for axis in space.chosen for value in space.axes.get(axis, ())]

    def place(counted: tuple[str, int]) -> tuple[bool, int]:
        return not any(names_value(counted[0], *pair) for pair in chosen), -counted[1]

    by_count = sorted(points.skipped, key=place)
    reasons = "; ".join(f"{reason} ({count:,} points)" for reason, count in by_count[:_MOST_REASONS])
    if num_others := sum(count for _, count in by_count[_MOST_REASONS:]):
        reasons += f"; {num_others:,} points for other reasons"
    reasons += batch_hint(points.skipped, space, points.recipe, cluster)
    return f"no layout of {space.name} runs on {cluster.num_devices} x {cluster.device.name}: {reasons}"


def _at_ends(
    space: Space, points: PlanPoints, prediction: Prediction, best: int, cluster: ClusterSpec
) -> tuple[str, ...]:
    """Returns a sentence for each axis on which row `best` has the last value of the space although the next value
    fits, with the predicted change for the next value.
    """
    recipe, listed = points.recipe, dict[Layout, list[int]]()
    for layout, batch in zip(points.layouts, points.batches, strict=True):
        listed.setdefault(layout, []).append(batch.micro_batch)

    def refuses(layout: Layout) -> str | None:
        return misplaced(recipe, layout, cluster, spans_nodes=space.spans_nodes) or refusal(
            recipe, layout, cluster.software
        )

    micro_batch = points.batches[best].micro_batch
    ends = listed_ends(recipe, points.layouts[best], micro_batch, listed=listed, refuses=refuses)
    if not ends:
        return ()
    beyond = predict(planned_columns([(recipe, end.layout, end.batch) for end in ends], cluster))
    sentences: list[str] = []
    for row, end in enumerate(ends):
        if beyond.ok_probability[row] < SURE:
            continue
        gain = 100 * (float(prediction.step.total_s[best]) / float(beyond.step.total_s[row]) - 1)
        change = f"{abs(gain):.1f} % {'faster' if gain > 0 else 'slower'}" if abs(gain) >= 0.05 else "as fast"
        sentences.append(f"{end.words}: {end.beyond} is predicted {change} ({end.option})")
    return tuple(sentences)


def _predicted_to_fail(runs: Mask, fits: Mask) -> Iterator[tuple[str, int]]:
    """Yields (reason, number of points): points predicted to run out of memory, and points predicted to thrash."""
    if not runs.all():
        yield "predicted out of memory", int((~runs).sum())
    if (runs & ~fits).any():
        yield "predicted to thrash: the allocator's pools exceed the device", int((runs & ~fits).sum())


def _faster(seconds_per_token: Array, unsure: Mask, rows: Rows) -> int | None:
    """Returns the fastest `unsure` row if it is faster than the first of `rows`; otherwise None."""
    candidates = np.flatnonzero(unsure)
    if not len(rows) or not len(candidates):
        return None
    fastest = int(candidates[np.argmin(seconds_per_token[candidates])])
    return fastest if seconds_per_token[fastest] < seconds_per_token[rows[0]] else None


def _fastest_rows(layouts: Sequence[Layout], seconds_per_token: Array, fits: Mask, sure: Mask) -> Rows:
    """Returns the fastest fitting row of each layout by time per token, ascending; `sure` rows come first."""
    fitting = np.flatnonzero(fits)
    by_time = fitting[np.lexsort((seconds_per_token[fitting], ~sure[fitting]))]
    fastest: dict[Layout, int] = {}
    for row in by_time:
        fastest.setdefault(layouts[row], int(row))
    return np.array(list(fastest.values()), dtype=np.int64)


def _seconds(prediction: Prediction, row: int) -> dict[str, float]:
    return {part: float(sum(getattr(prediction.step, name)[row] for name in names)) for part, names in PARTS.items()}


def _counted_losses(prediction: Prediction, rows: Rows) -> tuple[tuple[str, int], ...]:
    """Returns (part, number of rows): the part of its step in which a slower row loses most against the first row."""
    seconds = np.stack([sum(getattr(prediction.step, name)[rows] for name in names) for names in PARTS.values()])
    totals = prediction.step.total_s[rows]
    slower = totals > totals[:1] * (1 + AS_FAST)
    worst = np.argmax(seconds[:, slower] - seconds[:, :1], axis=0)
    return tuple((part, int((worst == index).sum())) for index, part in enumerate(PARTS) if (worst == index).any())


def planned_at(
    recipe: Recipe,
    layout: Layout,
    batch: BatchPoint,
    cluster: ClusterSpec,
    prediction: Prediction,
    row: int,
    best: int,
) -> PredictedLayout:
    """Returns the plan of `layout` and `batch` from row `row` of `prediction`, compared with row `best`."""
    total = float(prediction.step.total_s[row])
    seconds, winner = _seconds(prediction, row), _seconds(prediction, best)
    is_slower = total > float(prediction.step.total_s[best]) * (1 + AS_FAST)
    loses_by = max(PARTS, key=lambda part: seconds[part] - winner[part]) if is_slower else ""
    # With a fixed accumulation the global batch differs for each micro-batch.
    tokens = batch.micro_batch * batch.grad_accum * layout.data_parallel * recipe.seq_len
    keys = keys_per_query(recipe)
    flops = recipe.flops_per_token(keys_per_query=keys) * tokens
    peak = cluster.device.peak_tflops(recipe.product_type) * 1e12 * cluster.num_devices
    return PredictedLayout(
        layout=layout,
        micro_batch=batch.micro_batch,
        grad_accum=batch.grad_accum,
        step_s=total,
        low_s=float(prediction.low_s[row]),
        high_s=float(prediction.high_s[row]),
        tokens_per_s=tokens / total,
        mfu=flops / total / peak,
        peak_tflops=cluster.device.peak_tflops(recipe.product_type),
        needed_gib=float(prediction.memory.needed_gib[row]),
        fit_probability=float(prediction.fit_probability[row]),
        ok_probability=float(prediction.ok_probability[row]),
        shares={part: value / total for part, value in seconds.items()},
        loses_by=loses_by,
    )


def parts_gib(columns: Columns, row: int) -> dict[str, float]:
    parts = peak_parts(columns.take(np.array([row])))
    return {field.name: float(np.ravel(getattr(parts, field.name))[0]) for field in dataclasses.fields(parts)}


def _nearest(points: PlanPoints, columns: Columns, prediction: Prediction) -> str:
    """Returns the point that needs the smallest share of its device's memory, as text with the parts of that memory."""
    row = int(np.argmin(prediction.memory.needed_gib / columns.capacity_gib))
    listed = ", ".join(f"{part} {gib:.1f}" for part, gib in parts_gib(columns, row).items() if gib >= 0.05)
    phase = PHASES[int(prediction.memory.phase[row])].replace("_", " ")
    needed, capacity = float(prediction.memory.needed_gib[row]), float(columns.capacity_gib[row])
    # Needed memory below the capacity may still not run: the allocator caches more, and predictions are uncertain.
    runs = f", and runs with a probability of {prediction.ok_probability[row]:.0%}" if needed < capacity else ""
    return (
        f"nearest is {points.layouts[row].label} at micro-batch {points.batches[row].micro_batch}, which needs"
        f" {needed:.1f} GiB of {capacity:.1f}{runs} ({phase}: {listed})"
    )
