"""Enumerates every layout and micro-batch of a space on a cluster; counts the skipped ones by reason."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from platform.cost_model.columns import Columns
from platform.cost_model.engines import costs
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.placement import misplaced
from platform.plan.offers import combinations, refusal
from platform.plan.software import planned_columns
from search_spaces.degrees import Reach, fill
from search_spaces.space import Space
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

UNDIVIDED = "micro-batch x data-parallel ranks do not divide the global batch"
"""Reason for skipping a point because of its batch."""
_WIDE_FROM = 16
"""Number of devices from which a plan tries more degrees than a search, which could not measure so many layouts."""
UNFILLED = "micro-batches do not fill the pipeline, or the rounds of an interleaved schedule"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanPoints:
    """The points of one recipe that can run if they fit in memory."""

    recipe: Recipe
    layouts: tuple[Layout, ...]
    batches: tuple[BatchPoint, ...]
    skipped: tuple[tuple[str, int], ...]
    """(reason, number of points)."""
    num_points: int
    """Number of points considered."""

    def columns(self, cluster: ClusterSpec) -> Columns:
        """Returns the cost model's input, one row per point."""
        return planned_columns(self.of_recipe, cluster)

    @property
    def of_recipe(self) -> list[tuple[Recipe, Layout, BatchPoint]]:
        """(recipe, layout, batch point) of each row."""
        return [(self.recipe, layout, batch) for layout, batch in zip(self.layouts, self.batches, strict=True)]


def points_of(space: Space, recipe: Recipe, cluster: ClusterSpec, reach: Reach | None = None) -> PlanPoints:
    """Returns the layouts of `space` for `recipe` on all devices of `cluster`, at each micro-batch of the space.

    The layouts are limited to what the cluster's software runs, with more degrees according to `reach` (default: every
    divisor on many devices). `recipe` may be outside the space, for example with a larger model.
    """
    rows: list[tuple[Layout, BatchPoint]] = []
    skipped: collections.Counter[str] = collections.Counter()
    meaningless: collections.Counter[str] = collections.Counter()
    enumerated: set[tuple[Layout, int]] = set()
    refuses = functools.cache(functools.partial(refusal, recipe, software=cluster.software))
    reach = reach or ("wide" if cluster.num_devices >= _WIDE_FROM else "named")
    for values, micro_batches in _combinations(space.widened(cluster.num_devices), recipe, cluster, reach):
        try:
            layout = fill(values, cluster.num_devices)
        except ValueError as error:
            meaningless[str(error)] += len(micro_batches)
            continue
        ladder = space.ladder(micro_batches, recipe, layout)
        fresh = [micro_batch for micro_batch in ladder if (layout, micro_batch) not in enumerated]
        enumerated.update((layout, micro_batch) for micro_batch in fresh)
        reason = misplaced(recipe, layout, cluster, spans_nodes=space.spans_nodes) or refuses(layout)
        if costs(layout.rules.name) is None:
            reason = f"the cost model does not know engine {layout.rules.name}"
        for micro_batch in fresh:
            try:
                batch = BatchPoint.of(recipe, layout, micro_batch)
            except ValueError:
                remainder = recipe.global_batch % (micro_batch * layout.data_parallel)
                skipped[reason or (UNDIVIDED if remainder else UNFILLED)] += 1
            else:
                if reason:
                    skipped[reason] += 1
                else:
                    rows.append((layout, batch))
    skip_counts = skipped if rows or skipped else meaningless
    return PlanPoints(
        recipe=recipe,
        layouts=tuple(layout for layout, _ in rows),
        batches=tuple(batch for _, batch in rows),
        skipped=tuple(skip_counts.items()),
        num_points=len(rows) + skipped.total(),
    )


def recipes_of(space: Space) -> tuple[Recipe, ...]:
    """Returns the recipes to plan: those of the space, or those of its named points."""
    if not space.points:
        return space.recipes
    return tuple(dict.fromkeys(recipe for recipe, *_ in space.combinations()))


def _combinations(
    space: Space, recipe: Recipe, cluster: ClusterSpec, reach: Reach
) -> Iterator[tuple[Mapping[str, Any], tuple[int, ...]]]:
    """Yields (axis values, micro-batches) of `recipe` for the cluster's software."""
    if recipe not in recipes_of(space):
        space = dataclasses.replace(space, recipe=recipe, further_recipes=())
        yield from ((values, micro_batches) for _, values, micro_batches, _ in combinations(space, cluster, reach))
        return
    for combination_recipe, values, micro_batches, _ in combinations(space, cluster, reach):
        if combination_recipe == recipe:
            yield values, micro_batches
