"""The largest model that a number of devices holds: layers, heads and width are grown together until it is full."""

import dataclasses
from collections.abc import Sequence

from platform.cost_model.hardware import ClusterSpec
from platform.errors import InputError
from platform.plans.layouts import Planned
from platform.plans.scaling import AtSize, at_size
from search_spaces.space import Space
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

MOST_HEADS = 512


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The largest model of one number of devices."""

    num_devices: int
    recipe: Recipe
    """Its model is the grown one."""
    planned: Planned


def grown(base: ModelSpec, num_heads: int, num_layers: int) -> ModelSpec:
    """`base` with more heads of the same width, and layers and feed-forward width as given or in proportion."""
    hidden = base.head_dim * num_heads
    shared = base.num_heads // base.num_kv_heads
    return dataclasses.replace(
        base,
        name=f"{base.name}-grown",
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=max(1, num_heads // shared),
        ffn_size=round(base.ffn_size * hidden / base.hidden_size),
        config="",
    )


def _in_proportion(base: ModelSpec, num_heads: int) -> ModelSpec:
    return grown(base, num_heads, max(1, round(base.num_layers * num_heads / base.num_heads)))


def largest_models(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    counts: Sequence[int],
    *,
    micro_batch: int,
    memory_cap_gib: float | None = None,
) -> tuple[Largest, ...]:
    """For each count of devices the largest model that trains at `micro_batch` sequences a device, one micro-step.

    Heads grow (a group of key/value heads at a time), layers in proportion, until nothing fits; then layers alone.

    Raises:
        InputError: not even one head fits.
    """
    found: list[Largest] = []
    narrowed = dataclasses.replace(space, micro_batches=(micro_batch,), points=())
    for count in counts:
        part = cluster.with_devices(count)
        base = recipe.model
        step = base.num_heads // base.num_kv_heads

        def size(model: ModelSpec, part: ClusterSpec = part, count: int = count) -> AtSize:
            changed = dataclasses.replace(recipe, model=model, global_batch=micro_batch * count)
            return at_size(narrowed, changed, part, memory_cap_gib)

        low, high = 0, MOST_HEADS // step
        while high - low > 1:  # memory grows with the heads
            middle = (low + high) // 2
            fits = size(_in_proportion(base, middle * step)).planned is not None
            low, high = (middle, high) if fits else (low, middle)
        if low == 0:
            reason = size(_in_proportion(base, step)).reason
            raise InputError(f"no model like {base.name} fits {count} x {cluster.device.name}: {reason}")
        model = _in_proportion(base, low * step)
        planned = size(model).planned
        while True:
            taller = grown(base, model.num_heads, model.num_layers + 1)
            more = size(taller).planned
            if more is None:
                break
            model, planned = taller, more
        assert planned is not None
        found.append(
            Largest(
                num_devices=count,
                recipe=dataclasses.replace(recipe, model=model, global_batch=micro_batch * count),
                planned=planned,
            )
        )
    return tuple(found)
