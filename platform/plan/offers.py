"""Restricts a space to the layouts that a software (this project's engines, or one of `stacks.json`) can run."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from platform.common.errors import InputError
from platform.cost_model.hardware import THIS_PROJECT, ClusterSpec
from platform.cost_model.stacks import fact, runs
from platform.plan.software import attention_of
from platform.validate.row_software import STAGES
from search_spaces.degrees import Reach
from search_spaces.space import Space
from trainers.spec.axis import axes_of, defaults_of
from trainers.spec.engines import predicted, registered, rules_of
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import MODEL_PARALLEL
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

Combination = tuple[Recipe, dict[str, Any], tuple[int, ...], str]
_SPLITTING = predicted()[0]
"""An engine of this project with all model-parallel degrees; the engines of other software replace it."""
_DEGREES = (*MODEL_PARALLEL, "virtual")
_KERNELS = {
    name: defaults_of(Layout)[name]
    for name, axis in axes_of(Layout).items()
    if axis.column == "kernels" or (axis.of_some_engines and name not in ("schedule", "virtual"))
}
"""Default values of the axes for kernels and engines that exist only in this project's trainers."""


def with_engines_of(space: Space, software: str) -> Space:
    """Returns the space with the engines and stages of `software`, so that values of other axes are checked against
    them. A space of named points is unchanged.
    """
    if software == THIS_PROJECT or space.points:
        return space
    replaced = {
        "engine": tuple(dict.fromkeys(_engine(strategy, software) for strategy in runs(software))),
        "zero_stage": tuple(dict.fromkeys(STAGES[strategy] for strategy in runs(software))),
    }
    split = {**space.model_parallel, **replaced} if space.model_parallel else {}
    return dataclasses.replace(space, axes={**space.axes, **replaced}, model_parallel=split)


def combinations(space: Space, cluster: ClusterSpec, reach: Reach) -> Iterator[Combination]:
    """Yields (recipe, axis values, micro-batches, point's name) for the part of the space that the cluster's software
    can run, with degrees within `reach`.

    Raises:
        InputError: the user set values that the software does not have.
    """
    if cluster.software == THIS_PROJECT:
        yield from space.combinations(cluster.num_devices, reach)
        return
    strategies = _strategies(space, cluster)
    for recipe, values, micro_batches, name in _of_degrees(space).combinations(cluster.num_devices, reach):
        for strategy, replaced in strategies.items():
            if _degrees_of(values) <= set(runs(cluster.software)[strategy]):
                yield recipe, {**values, **replaced}, micro_batches, name


def without_effect(space: Space, software: str) -> tuple[str, ...]:
    """Returns the axes that the user set and that have no effect, because other software has its own kernels."""
    return () if software == THIS_PROJECT else tuple(axis for axis in space.chosen if axis in _KERNELS)


def refusal(recipe: Recipe, layout: Layout, software: str) -> str:
    """Returns the reason why `software` cannot run `recipe` with `layout` on any devices; "" if it can."""
    if software == THIS_PROJECT:
        return standing_refusal(recipe, layout, layout.world_size) or ""
    if recipe.compression != "none":
        return f"compression {recipe.compression} is of this project's trainers, not of {software}"
    strategy = layout.rules.strategy(layout)
    degrees = {name: getattr(layout, name) for name in _DEGREES}
    beside = sorted(_degrees_of(degrees) - set(runs(software).get(strategy, ())))
    if strategy not in runs(software) or not _is_of(layout, strategy, software):
        return f"{software} has no {layout.rules.label(layout)}"
    return f"{software} has no {' or '.join(beside)} beside {layout.rules.label(layout)}" if beside else ""


def _is_of(layout: Layout, strategy: str, software: str) -> bool:
    """Returns whether the layout's engine and the software's engine shard the same states at the layout's stage."""
    return not layout.zero_stage or rules_of(_engine(strategy, software)).label(layout) == layout.rules.label(layout)


def _engine(strategy: str, software: str) -> str:
    """Returns the engine for layouts of a software's strategy. If the software's own engine lacks the strategy's stage
    (it treats replicas as shards of one rank), the first engine with this stage.
    """
    engine, stage = fact(software, "engines", {})[strategy], STAGES[strategy]
    return engine if stage in rules_of(engine).stages else next(r.name for r in registered() if stage in r.stages)


def _degrees_of(values: Mapping[str, Any]) -> set[str]:
    return {name for name in _DEGREES if values.get(name, 1) > 1}


def _strategies(space: Space, cluster: ClusterSpec) -> dict[str, dict[str, Any]]:
    """Returns the values of the engine and kernel axes in other software, by strategy, for the strategies that the user
    requested.

    Raises:
        InputError: the software has none of the requested strategies.
    """
    software, replicated = cluster.software, "dp_replicate" in space.axes
    strategies: dict[str, dict[str, Any]] = {}
    for strategy in runs(software):
        if strategy == "hsdp" and not replicated:
            continue  # without replicas the layouts are the same as for fsdp
        strategies[strategy] = {
            **_KERNELS,
            "engine": _engine(strategy, software),
            "zero_stage": STAGES[strategy],
            "attention": attention_of(space.recipe, strategy, cluster),
            "compile": fact(software, "compiles", "none"),
        }
    requested = {axis: space.axes[axis] for axis in space.chosen if axis in ("engine", "zero_stage")}
    possible = {
        strategy: values
        for strategy, values in strategies.items()
        if all(values[axis] in some for axis, some in requested.items())
    }
    if not possible:
        raise InputError(_nothing_of(requested, strategies, software))
    return possible


def _nothing_of(
    requested: Mapping[str, tuple[Any, ...]], strategies: Mapping[str, Mapping[str, Any]], software: str
) -> str:
    options = " ".join(f"--set {axis}={','.join(map(str, values))}" for axis, values in requested.items())
    choices = {axis: dict.fromkeys(str(values[axis]) for values in strategies.values()) for axis in requested}
    has = "; ".join(f"{axis} {' or '.join(values)}" for axis, values in choices.items())
    return f"{software} runs nothing of {options}: it has {has}; leave out the other values"


def _of_degrees(space: Space) -> Space:
    """Returns the space without the axes of engines and kernels; the axes that split the model stay."""
    replaced = {"engine", "zero_stage", *_KERNELS}

    def without(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        return {axis: values for axis, values in axes.items() if axis not in replaced} | {"engine": (_SPLITTING,)}

    split = without(space.model_parallel) if space.model_parallel else {}
    return dataclasses.replace(space, axes=without(space.axes), model_parallel=split)
