"""Finds the largest model that fits on a number of devices by growing layers, heads and width together."""

import dataclasses
from collections.abc import Callable, Sequence

from platform.common.errors import InputError
from platform.cost_model.hardware import ClusterSpec
from platform.plan.planned import PredictedLayout
from platform.plan.sizes import AtSize, at_size, is_sure
from search_spaces.space import Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

MOST_HEADS = 512
MOST_LAYERS = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The largest model on one number of devices."""

    num_devices: int
    recipe: Recipe
    """Recipe of the grown model."""
    planned: PredictedLayout


def grown(base: ModelSpec, num_heads: int, num_layers: int) -> ModelSpec:
    """Returns `base` with these layers and heads of the same width; the feed-forward width grows with the heads."""
    hidden = base.hidden_size * num_heads // base.num_heads
    shared = base.num_heads // base.num_kv_heads
    return dataclasses.replace(
        base,
        name=f"{base.name}-grown",
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=max(1, num_heads // shared),
        ffn_size=round(base.ffn_size * hidden / base.hidden_size),
        shared_ffn_size=round(base.shared_ffn_size * hidden / base.hidden_size),
        window_layers=max(1, round(base.window_layers * num_layers / base.num_layers)) if base.window else 0,
        config="",
    )


def _in_proportion(base: ModelSpec, num_heads: int) -> ModelSpec:
    return grown(base, num_heads, max(1, round(base.num_layers * num_heads / base.num_heads)))


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """Returns the largest count below `limit` that fits, or 0. Doubles, then bisects: memory grows with the count."""
    low, high = 0, 1
    while high < limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_models(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    counts: Sequence[int],
    *,
    micro_batch: int,
) -> tuple[Largest, ...]:
    """Returns for each device count the largest model that trains with one micro-step of `micro_batch` sequences per
    device.

    Heads (one key/value group at a time) and layers grow in proportion until nothing fits; then layers grow alone.

    Raises:
        InputError: not even one group of heads fits.
    """
    narrowed = dataclasses.replace(space, micro_batches=(micro_batch,), doubling=False, points=())
    parts = [cluster.with_devices(count) for count in counts]
    return tuple(_largest(narrowed, recipe, part, micro_batch) for part in parts)


def _largest(space: Space, recipe: Recipe, cluster: ClusterSpec, micro_batch: int) -> Largest:
    base, num_devices = recipe.model, cluster.num_devices
    step = base.num_heads // base.num_kv_heads

    def with_model(model: ModelSpec) -> Recipe:
        return dataclasses.replace(recipe, model=model, global_batch=micro_batch * num_devices)

    def size(model: ModelSpec) -> AtSize:
        return at_size(space, with_model(model), cluster)

    def fits(model: ModelSpec) -> bool:
        return is_sure(size(model))

    heads = step * _most(lambda count: fits(_in_proportion(base, count * step)), MOST_HEADS // step)
    if not heads:
        reason = size(_in_proportion(base, step)).reason
        raise InputError(f"no model like {base.name} fits into {num_devices} x {cluster.device.name}: {reason}")
    layers = _in_proportion(base, heads).num_layers
    model = grown(base, heads, layers + _most(lambda more: fits(grown(base, heads, layers + more)), MOST_LAYERS))
    planned = size(model).planned
    assert planned is not None
    return Largest(num_devices=num_devices, recipe=with_model(model), planned=planned)
