"""Makes a `Layout` from axis values and a number of devices, and finds the reason why it cannot run."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

from trainers.spec.engines import imported_rules
from trainers.spec.engines.engine_axis import fewest_shards
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES, CUTTING, DEGREES, MODEL_PARALLEL
from trainers.spec.mesh_rules import division_refusals, pipeline_refusals
from trainers.spec.recipe import Recipe

Reach = Literal["named", "wide", "all"]
"""Degrees added to a space's own: for a search ("named"), for a plan ("wide"), or all possible ones."""


def num_ranks(values: Mapping[str, Any], degrees: Iterable[str]) -> int:
    """Returns the number of ranks of these degrees together, each 1 where `values` does not name it; those that group
    ranks of others count none.
    """
    return math.prod([max(1, values[name]) for name in degrees if name in values and name in AXES])


def with_divisors(
    axes: Mapping[str, tuple[Any, ...]], recipe: Recipe, num_devices: int, reach: Reach, chosen: Collection[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Returns `axes` with further divisors of `num_devices` added to the degrees that split the model, if they can cut
    the model and its sequences. A degree with one value, or in `chosen`, stays unchanged.

    Spaces name powers of two. A search adds 3, 6 or 12, but no larger power of two; a plan adds every divisor, except
    context-parallel degrees that leave a rank a short piece of a sequence.
    """
    wider = {
        axis: (*values, *_further(axis, values, recipe, num_devices, reach))
        for axis, values in axes.items()
        if axis in MODEL_PARALLEL and axis not in chosen and len(values) > 1
    }
    return {**axes, **wider}


def _further(axis: str, named: Collection[int], recipe: Recipe, num_devices: int, reach: Reach) -> Iterator[int]:
    largest, declared = max(named), DEGREES[axis]
    bound = num_devices if reach == "all" else max(largest, declared.worth(recipe))
    for degree in divisors(num_devices):
        if reach == "named" and degree & -degree > largest:  # the largest power of two that divides it
            continue
        if degree not in named and min(named) < degree <= bound and declared.divides(recipe, degree):
            yield degree


def tried(*first: str) -> dict[str, tuple[int, ...]]:
    """Returns the values that every space tries for the degrees that split a model; `first` vary slowest."""
    return {name: values for name in (*first, *MODEL_PARALLEL) if (values := DEGREES[name].tried)}


def divisors(number: int) -> tuple[int, ...]:
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(dict.fromkeys((*low, *(number // divisor for divisor in reversed(low)))))


def fill(values: Mapping[str, Any], num_devices: int) -> Layout:
    """Returns the layout of these axis values on `num_devices`.

    Degrees named in `values` are taken unchanged. Other model-parallel degrees are 1, and the remaining devices shard
    (or replicate at stage 0). `schedule` and `virtual` follow from each other. `grad_sync` is set if the engine has
    only one mode, and to "last" on one data-parallel rank, where both modes are equal. The degrees may not multiply to
    `num_devices`; `reason_against` reports this.

    Raises:
        ValueError: the values have no meaning for the engine (the error of `Layout`).
    """
    sharded = values.get("zero_stage", 0) > 0
    data_parallel = max(1, num_devices // num_ranks(values, MODEL_PARALLEL))
    shard = max(1, data_parallel // max(1, values.get("dp_replicate", 1))) if sharded else 1
    shard = values.get("dp_shard", shard)
    replicate = values.get("dp_replicate", max(1, data_parallel // max(1, shard)))
    filled: dict[str, Any] = {**values, "dp_replicate": replicate, "dp_shard": shard}
    if values.get("virtual", 1) > 1:
        filled.setdefault("schedule", "interleaved")
    elif values.get("schedule") == "interleaved":
        filled.setdefault("virtual", 2)
    syncs = _grad_syncs(values)
    if len(syncs) == 1:
        filled["grad_sync"] = syncs[0]
    elif replicate * shard == 1:
        filled["grad_sync"] = "last"
    return Layout(**filled)


def _grad_syncs(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the possible values of `grad_sync`; empty if the engine is unknown or cannot be imported, which is
    reported elsewhere.
    """
    try:
        rules = imported_rules(values["engine"])
    except (KeyError, ValueError):
        return ()
    return tuple(rules.grad_syncs.get(values.get("zero_stage", 0), ()))


def refilled(layout: Layout, num_devices: int, **changed: int) -> Layout:
    """Returns `layout` with `changed` values and its data-parallel degree set for `num_devices`. If it both shards and
    replicates, the shards keep their size and the number of replicas changes.

    Raises:
        ValueError: the other degrees, or the shards, do not divide the devices.
    """
    free = ("dp_replicate",) if layout.dp_replicate > 1 else ("dp_replicate", "dp_shard")
    values = {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)}
    filled = fill({**{name: value for name, value in values.items() if name not in free}, **changed}, num_devices)
    if filled.world_size != num_devices:
        degrees = filled.above_one(("dp_shard", *MODEL_PARALLEL) if len(free) == 1 else MODEL_PARALLEL)
        raise ValueError(f"{num_devices} devices are not a multiple of the layout's {filled.in_words(degrees)}")
    return filled


def fewest_devices(values: Mapping[str, Any]) -> int:
    """Returns the smallest number of devices for the degrees in `values` and for axes that need shards."""
    shards, tokens = fewest_shards(values), num_ranks(values, CUTTING["tokens"])
    grouped = math.prod(values.get(name, 1) for name in MODEL_PARALLEL if not DEGREES[name].multiplies)
    degrees = {"dp_shard": math.lcm(shards * tokens, grouped) // tokens, **values}
    return num_ranks(degrees, DEGREES)


def reason_against(recipe: Recipe, layout: Layout, num_devices: int) -> str | None:
    """Returns the reason why `layout` cannot train `recipe` on `num_devices`, in one sentence; None if it can."""
    if layout.world_size != num_devices:
        degrees = layout.in_words(layout.above_one(DEGREES))
        return f"{degrees or 'every degree 1'} takes {layout.world_size} devices, there are {num_devices}"
    if not recipe.has_model:
        return None
    return next(iter((*pipeline_refusals(recipe, layout), *division_refusals(recipe, layout))), None)


def splits_model(values: Mapping[str, Any], num_devices: int | None) -> bool:
    """Returns whether these axis values split a model in a way that their engine supports, on a number of devices that
    divides `num_devices` (None: any number).
    """
    split = {axis: size for axis in MODEL_PARALLEL if (size := values.get(axis, 1)) > 1}
    if not split or (num_devices is not None and num_devices % num_ranks(split, split)):
        return False
    try:
        return split.keys() <= set(imported_rules(values["engine"]).model_parallel)
    except (KeyError, ValueError):
        return True  # an unknown engine is reported elsewhere
