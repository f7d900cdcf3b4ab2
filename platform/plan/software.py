"""Cost model columns for layouts that run under other software."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.features import TrainingWork, features, from_points, joined
from platform.cost_model.hardware import THIS_PROJECT, ClusterSpec
from platform.cost_model.layout_arrays import AXES, LayoutArrays
from platform.cost_model.mesh import STAGE_COLUMNS
from platform.validate.cells import Row
from platform.validate.facts import normalized
from platform.validate.published import is_flash, modules_of, stack_features
from platform.validate.row_software import data_parallelism_of, stage_of
from platform.validate.rows import NEEDED
from trainers.spec.axis import axes_of, defaults_of
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CUTTING
from trainers.spec.recipe import Recipe

_OF_THE_STACK = {name: defaults_of(Layout)[name] for name, axis in axes_of(Layout).items() if axis.of_the_stack}
Point = tuple[Recipe, Layout, BatchPoint]


def planned_columns(points: Sequence[Point], cluster: ClusterSpec) -> Columns:
    """Returns one row for each (recipe, layout, batch point), in order, for the software of `cluster`.

    Other software uses a layout's degrees, sharding stage, checkpointing and offload, but its own kernels and data
    parallelism.
    """
    if cluster.software == THIS_PROJECT:
        return from_points(points, cluster)
    groups: dict[tuple[Recipe, tuple[tuple[str, str], ...]], list[int]] = {}
    for place, (recipe, layout, _) in enumerate(points):
        groups.setdefault((recipe, tuple(_row(recipe, layout, cluster.software).items())), []).append(place)
    parts = [
        _columns([points[place] for place in members], normalized(dict(row)), cluster)
        for (_, row), members in groups.items()
    ]
    order = np.argsort([place for members in groups.values() for place in members], kind="stable")
    return joined(parts).take(order) if parts else from_points(points, cluster)


def attention_of(recipe: Recipe, strategy: str, cluster: ClusterSpec) -> str:
    """Returns the attention of other software on the devices of `cluster`, as a value of the layout's axis."""
    row = {**dict.fromkeys(NEEDED, ""), "model": recipe.model.architecture, "strategy": strategy}
    return "sdpa" if is_flash({**row, "software": cluster.software}, cluster) else "eager"


def _row(recipe: Recipe, layout: Layout, software: str) -> Row:
    """Returns the layout under `software` as a row of a measurement table."""
    return {
        **dict.fromkeys(NEEDED, ""),
        "model": recipe.model.architecture,
        "software": software,
        "strategy": layout.rules.strategy(layout),
        **{name: str(getattr(layout, name)) for name in CUTTING["width"]},
        "activation_ckpt": layout.checkpointing,
        "precision": recipe.compute_precision,
        "state_precision": recipe.state_precision,
        "status": "ok",
    }


def _columns(points: Sequence[Point], row: Row, cluster: ClusterSpec) -> Columns:
    recipe, first, _ = points[0]
    work = dataclasses.replace(TrainingWork.of(recipe), modules=modules_of(row))
    engine = data_parallelism_of(row)
    overrides = {"engine": engine, **_OF_THE_STACK}
    strategy, software = row["strategy"], cluster.software
    layouts = [
        {name: getattr(layout, name) for name in AXES}
        | overrides
        | {"zero_stage": stage_of(strategy, software, layout.parts("depth"))}
        for _, layout, _ in points
    ]
    return features(
        work,
        LayoutArrays.of(layouts),
        cluster,
        micro_batch=np.array([batch.micro_batch for *_, batch in points], dtype=np.float64),
        grad_accum=np.array([batch.grad_accum for *_, batch in points], dtype=np.float64),
        stack={**stack_features(row, work, cluster, first.parts("width")), **dict.fromkeys(STAGE_COLUMNS, 0.0)},
    )


def distinct(columns: Columns, rows: Sequence[int]) -> list[int]:
    """Returns the `rows` whose columns differ from every earlier row; the software runs equal ones identically."""
    first_rows: dict[bytes, int] = {}
    matrix = np.stack([np.broadcast_to(array, columns.shape) for array in columns.arrays().values()], axis=-1)
    for row in rows:
        first_rows.setdefault(matrix[row].tobytes(), int(row))
    return list(first_rows.values())
