"""Predicts each named point of a space on a cluster, without changing its values."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from platform.common.errors import InputError
from platform.cost_model.columns import Columns
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.placement import older_than_kernels
from platform.cost_model.predict import SURE, Prediction, predict
from platform.plan.best_layouts import planned_at
from platform.plan.offers import refusal
from platform.plan.planned import PredictedLayout
from platform.plan.software import planned_columns
from platform.plan.tables import batch_of, chance_of, conditions, figure, interval_of, planned_json, table_of
from search_spaces.degrees import fill, reason_against
from search_spaces.space import Space
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_WIDE = 110
"""Terminal width from which the table has a layout column."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NamedPoint:
    """One named point with its prediction."""

    name: str
    recipe: Recipe
    planned: PredictedLayout | None
    """None if the point cannot run on these devices."""
    reason: str = ""
    """Reason why the point cannot run or is predicted not to fit; "" if it fits."""


def of_space(space: Space, cluster: ClusterSpec) -> ClusterSpec:
    """Returns the part of `cluster` with the number of devices that a trial of the space needs.

    Raises:
        InputError: the cluster has fewer devices.
    """
    if space.num_workers is None or space.num_workers == cluster.num_devices:
        return cluster
    if space.num_workers > cluster.num_devices:
        raise InputError(f"space {space.name} takes {space.num_workers} devices, got {cluster.num_devices}")
    return cluster.with_devices(space.num_workers)


def named_points(space: Space, cluster: ClusterSpec) -> tuple[NamedPoint, ...]:
    """Returns every named point of the space with each of its recipes, in the order of the space."""
    resolved = [
        (name, recipe, _resolved(recipe, values, micro_batch, cluster))
        for recipe, values, (micro_batch,), name in space.combinations()
    ]
    rows = [(recipe, *resolution) for _, recipe, resolution in resolved if not isinstance(resolution, str)]
    if not rows:
        reasons = "; ".join(dict.fromkeys(where for _, _, where in resolved if isinstance(where, str)))
        raise InputError(f"no point of {space.name} runs on {cluster.num_devices} x {cluster.device.name}: {reasons}")
    columns = planned_columns(rows, cluster)
    prediction = predict(columns)
    points: list[NamedPoint] = []
    row = 0
    for name, recipe, where in resolved:
        if isinstance(where, str):
            points.append(NamedPoint(name=name, recipe=recipe, planned=None, reason=where))
            continue
        planned = planned_at(recipe, *where, cluster, prediction, row, row)
        points.append(NamedPoint(name=name, recipe=recipe, planned=planned, reason=_lacks(columns, prediction, row)))
        row += 1
    return tuple(points)


def _resolved(
    recipe: Recipe, values: Mapping[str, Any], micro_batch: int, cluster: ClusterSpec
) -> tuple[Layout, BatchPoint] | str:
    """Returns the point's layout and batch on all devices of `cluster`, or the reason why it has none."""
    num_devices = cluster.num_devices
    try:
        layout = fill(values, num_devices)
        batch = BatchPoint.of(recipe, layout, micro_batch)
    except ValueError as error:
        return str(error)
    reason = reason_against(recipe, layout, num_devices) or refusal(recipe, layout, cluster.software)
    reason = reason or older_than_kernels(layout, cluster)
    return reason or (layout, batch)


def _lacks(columns: Columns, prediction: Prediction, row: int) -> str:
    """Returns the reason why the row's point is predicted not to run well; "" if it is predicted to run."""
    needed = float(prediction.memory.needed_gib[row])
    if not prediction.fits[row]:
        return f"out of memory: needs {needed:.1f} GiB of {columns.capacity_gib[row]:.1f}"
    if prediction.ok_probability[row] <= 0.5:
        return "predicted to thrash: the allocator's pools exceed the device"
    return ""


def show_named(points: Sequence[NamedPoint], cluster: ClusterSpec, tokens: float, console: Console) -> None:
    console.print(conditions(cluster), highlight=False)
    wide = console.width >= _WIDE
    names = ("point", "batch", "GiB", "step s", "80 %", "tok/s", "MFU", "days", "memory ok")
    table = table_of(*names, *(("layout",) if wide else ()))
    for column in table.columns[8:]:
        column.justify = "left"
    for point in points:
        planned = point.planned
        if planned is None:
            table.add_row(point.name, *("-" for _ in range(7)), point.reason)
            continue
        table.add_row(
            point.name,
            batch_of(planned),
            f"{planned.needed_gib:.1f}",
            figure(planned.step_s),
            interval_of(planned),
            figure(planned.tokens_per_s),
            f"{100 * planned.mfu:.0f} %",
            figure(planned.days(tokens)),
            point.reason.partition(":")[0] or ("yes" if planned.ok_probability >= SURE else chance_of(planned)),
            *((planned.layout.label,) if wide else ()),
        )
    console.print(table, highlight=False)
    recipes = len({point.recipe for point in points})
    of_recipes = f", of {recipes} recipes: only points of one recipe compete" if recipes > 1 else ""
    fitting = sum(not point.reason for point in points)
    console.print(f"{len(points)} named points{of_recipes}; {fitting} fit in memory", highlight=False)


def named_json(points: Sequence[NamedPoint], cluster: ClusterSpec, tokens: float) -> list[dict[str, Any]]:
    """Returns the points as JSON; a point that cannot run on these devices has no figures."""
    return [
        {"point": point.name, "recipe": point.recipe.label, "fits": not point.reason, "reason": point.reason}
        | ({} if point.planned is None else planned_json(point.planned, cluster, tokens))
        for point in points
    ]
