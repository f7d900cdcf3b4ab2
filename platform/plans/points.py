"""Every layout x micro-batch of a space on a cluster: the layouts themselves, with what is left out and why."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from platform.cost_model.columns import Columns
from platform.cost_model.engines import costs
from platform.cost_model.features import from_points
from platform.cost_model.hardware import ClusterSpec
from search_spaces.degrees import fill
from search_spaces.space import Space
from trainers.layout import BatchPoint, Layout
from trainers.recipe import Recipe
from trainers.support import standing_refusal

UNDIVIDED = "micro-batch x data-parallel ranks do not divide the global batch"
"""Why a point is skipped that a search skips for its batch alone."""
DEGREES = "degrees do not divide the devices"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """The points of one recipe that can run, apart from memory."""

    recipe: Recipe
    layouts: tuple[Layout, ...]
    """The layout of each row."""
    batches: tuple[BatchPoint, ...]
    """The batch point of each row."""
    skipped: tuple[tuple[str, int], ...]
    """(reason, points)."""
    num_points: int
    """Points looked at."""

    def columns(self, cluster: ClusterSpec) -> Columns:
        """What the cost model predicts from, a row a point."""
        return from_points(
            [(self.recipe, layout, batch) for layout, batch in zip(self.layouts, self.batches, strict=True)], cluster
        )


def points_of(space: Space, recipe: Recipe, cluster: ClusterSpec) -> Points:
    """The layouts that `space` gives for `recipe` on all devices of `cluster`, at each of its micro-batches.

    The layouts are those of a search, but for tensor, pipeline and context parallelism, which are planned for though no
    engine has them yet. `recipe` may be one that the space lacks, such as that of a larger model.
    """
    rows: list[tuple[Layout, BatchPoint]] = []
    skipped: collections.Counter[str] = collections.Counter()
    meaningless: collections.Counter[str] = collections.Counter()
    seen: set[tuple[Layout, int]] = set()
    refuses = functools.cache(functools.partial(_engine_refuses, recipe))
    for values, micro_batches in _combinations(space, recipe):
        try:
            layout = fill(values, cluster.num_devices)
        except ValueError as error:
            meaningless[str(error)] += len(micro_batches)
            continue
        fresh = [micro_batch for micro_batch in micro_batches if (layout, micro_batch) not in seen]
        seen.update((layout, micro_batch) for micro_batch in fresh)
        reason = _reason_against(recipe, layout, cluster) or refuses(_data_parallel_part(layout))
        if costs(layout.engine) is None:
            reason = f"the cost model does not know engine {layout.engine}"
        for micro_batch in fresh:
            try:
                batch = BatchPoint.of(recipe, layout, micro_batch)
            except ValueError:
                skipped[reason or UNDIVIDED] += 1
            else:
                if reason:
                    skipped[reason] += 1
                else:
                    rows.append((layout, batch))
    counted = skipped if rows or skipped else meaningless
    return Points(
        recipe=recipe,
        layouts=tuple(layout for layout, _ in rows),
        batches=tuple(batch for _, batch in rows),
        skipped=tuple(counted.items()),
        num_points=len(rows) + skipped.total(),
    )


def recipes_of(space: Space) -> tuple[Recipe, ...]:
    """The recipes that are planned for: those of the space, or of its named points."""
    return tuple(dict.fromkeys(recipe for recipe, *_ in space.combinations()))


def _combinations(space: Space, recipe: Recipe) -> Iterator[tuple[Mapping[str, Any], tuple[int, ...]]]:
    """(axis values, micro-batches) of `recipe`, as the space names them."""
    if recipe not in recipes_of(space):
        space = dataclasses.replace(space, recipe=recipe, further_recipes=())
        yield from ((values, micro_batches) for _, values, micro_batches, _ in space.combinations())
        return
    for named, values, micro_batches, _ in space.combinations():
        if named == recipe:
            yield values, micro_batches


def _reason_against(recipe: Recipe, layout: Layout, cluster: ClusterSpec) -> str:
    """Why the layout's degrees cannot stand on the cluster, in words that many layouts share; "" where they can."""
    model = recipe.model
    reasons = (
        (DEGREES, layout.world_size != cluster.num_devices),
        ("tp does not divide the heads", model.num_heads % layout.tp or model.num_kv_heads % layout.tp),
        ("tp reaches across nodes", layout.tp > cluster.devices_per_node),
        ("pp is more than the layers", layout.pp > model.num_layers),
        ("cp does not divide the sequence", layout.cp > 1 and recipe.seq_len % (2 * layout.cp)),
        ("ZeRO stages 2 and 3 under a pipeline", layout.pp > 1 and layout.zero_stage > 1),
    )
    return next((reason for reason, holds in reasons if holds), "")


def _data_parallel_part(layout: Layout) -> Layout:
    """The layout of the ranks that hold the same part of the model."""
    if layout.tp * layout.pp * layout.cp == 1:
        return layout
    return dataclasses.replace(layout, tp=1, pp=1, cp=1)


def _engine_refuses(recipe: Recipe, layout: Layout) -> str:
    """The sentence in which the layout's engine refuses it; "" where it does not."""
    return standing_refusal(recipe, layout, layout.world_size) or ""
