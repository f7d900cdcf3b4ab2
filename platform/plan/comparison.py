"""Compares models on clusters: best layout, days and cost of each pair, and the fewest nodes that meet the demands."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

from platform.cost_model.hardware import ClusterSpec, node_names
from platform.cost_model.predict import SURE
from platform.plan.best_layouts import with_whole_batch
from platform.plan.goodput import Elapsed, Interruptions, elapsed
from platform.plan.planned import DAY_S
from platform.plan.sizes import AtSize, at_size
from search_spaces.space import Space
from trainers.spec.recipe import Recipe

_MOST_NODES = 1024
_MOST_TRIES = 12
"""Largest number of node counts to plan for one cluster offer."""
_BETTER = 0.85
"""Factor on the proportional number of nodes. A smaller number is also tried, because with more nodes each may be
faster thanks to its larger share of memory.
"""
_TOO_DEAR = 1.5
"""Multiple of the allowed cost above which no more nodes are tried, because more nodes cost more."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """Limits on a training; None for no limit."""

    deadline_s: float | None = None
    max_cost: float | None = None

    def __bool__(self) -> bool:
        return self.deadline_s is not None or self.max_cost is not None

    @property
    def words(self) -> str:
        """Text such as "10 days and $20,000"."""
        days = "" if self.deadline_s is None else f"{self.deadline_s / DAY_S:.4g} days"
        dollars = "" if self.max_cost is None else f"${self.max_cost:,.10g}"
        return " and ".join(filter(None, (days, dollars)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One model on one cluster."""

    model: str
    """Name of the space."""
    written: str
    """The cluster as the user writes it."""
    cluster: ClusterSpec
    recipe: Recipe
    tokens: float
    best: AtSize
    elapsed: Elapsed | None
    """Days including all interruptions; None without a layout."""
    listed: bool = True
    """Whether the user named the cluster. False for a cluster that was found for the demands."""

    @property
    def hourly(self) -> float | None:
        """Dollars per hour for all devices; None if the price is unknown."""
        price = self.cluster.price_per_device_hour
        return None if price is None else price * self.cluster.num_devices

    @property
    def dollars(self) -> float | None:
        """Dollars for the training; None if the price is unknown or no layout fits."""
        return None if self.elapsed is None else self.cost(self.elapsed.days)

    @property
    def kind(self) -> str:
        """One node of the cluster, as a user writes it."""
        return written_as(self, 1)

    def cost(self, days: float) -> float | None:
        """Dollars for this many days; None if the price is unknown."""
        return None if self.hourly is None else self.hourly * 24 * days

    def meets(self, demands: Demands) -> Literal["yes", "perhaps", "no"]:
        """Returns "yes" if the whole interval of days and cost meets the demands and the layout surely fits, "no" if no
        part of the interval meets them or there is no layout, otherwise "perhaps".

        An unknown price counts as met, but allows no "yes" if the cost is limited.
        """
        if self.elapsed is None or self.best.planned is None:
            return "no"
        are_kept = [self._keeps(days, demands) for days in (self.elapsed.low_days, self.elapsed.high_days)]
        is_priced = demands.max_cost is None or self.hourly is not None
        if all(are_kept) and is_priced and self.best.planned.ok_probability >= SURE:
            return "yes"
        return "perhaps" if any(are_kept) else "no"

    def _keeps(self, days: float, demands: Demands) -> bool:
        cost = self.cost(days)
        in_time = demands.deadline_s is None or days * DAY_S <= demands.deadline_s
        return in_time and (demands.max_cost is None or cost is None or cost <= demands.max_cost)


def compare(
    space: Space, recipe: Recipe, written: str, cluster: ClusterSpec, tokens: float, interruptions: Interruptions
) -> Compared:
    """Returns the row of one recipe of a space on one cluster."""
    best = at_size(space, recipe, cluster)
    planned = best.planned
    days = None if planned is None else elapsed(planned, recipe, cluster, tokens, interruptions)
    return Compared(
        model=space.name,
        written=written,
        cluster=cluster,
        recipe=recipe,
        tokens=tokens,
        best=best,
        elapsed=days,
    )


def fewest_that_meet(row: Compared, space: Space, demands: Demands, interruptions: Interruptions) -> Compared | None:
    """Returns the row with the fewest nodes, of the same kind as the row's, that meet the demands; None if there is
    none.

    Tries at most `_MOST_TRIES` node counts upwards from the smallest possible one, estimated with perfect scaling.
    """
    planned_rows: dict[int, Compared] = {row.cluster.num_nodes: row}

    def at(num_nodes: int) -> Compared:
        if num_nodes not in planned_rows:
            cluster = dataclasses.replace(row.cluster, num_nodes=num_nodes)
            rounded = with_whole_batch(space, row.recipe, cluster.num_devices)
            recipe = rounded if "global_batch" in space.assumed else row.recipe
            row_there = compare(space, recipe, written_as(row, num_nodes), cluster, row.tokens, interruptions)
            planned_rows[num_nodes] = dataclasses.replace(row_there, listed=False)
        return planned_rows[num_nodes]

    if demands.max_cost is not None and row.hourly is None:
        return None
    num_nodes = _least(row, demands)
    for _ in range(_MOST_TRIES):
        candidate = at(num_nodes)
        if candidate.meets(demands) == "yes":
            return _fewer(at, num_nodes, demands)
        if _is_too_dear(candidate, demands) or num_nodes >= _MOST_NODES:
            return None
        num_nodes = min(_MOST_NODES, _next(candidate, num_nodes, demands))
    return None


def _fewer(at: Callable[[int], Compared], num_nodes: int, demands: Demands) -> Compared:
    """Returns the row with the fewest nodes that meet the demands, counting down from `num_nodes`."""
    while num_nodes > 1 and at(num_nodes - 1).meets(demands) == "yes":
        num_nodes -= 1
    return at(num_nodes)


def _least(row: Compared, demands: Demands) -> int:
    if row.elapsed is None or demands.deadline_s is None:
        return 1
    share = row.elapsed.high_days * DAY_S / demands.deadline_s
    return min(_MOST_NODES, max(1, math.floor(_BETTER * row.cluster.num_nodes * share)))


def _next(row: Compared, num_nodes: int, demands: Demands) -> int:
    """Returns the next number of nodes to try after `num_nodes` did not meet the demands."""
    if row.elapsed is None or demands.deadline_s is None or math.isinf(row.elapsed.high_days):
        return num_nodes + (1 if num_nodes < 8 else num_nodes // 2)
    return max(num_nodes + 1, math.floor(_BETTER * num_nodes * row.elapsed.high_days * DAY_S / demands.deadline_s))


def _is_too_dear(row: Compared, demands: Demands) -> bool:
    cost = None if row.elapsed is None else row.cost(row.elapsed.low_days)
    return cost is not None and demands.max_cost is not None and cost > _TOO_DEAR * demands.max_cost


def written_as(row: Compared, num_nodes: int) -> str:
    """Returns `num_nodes` nodes of the row's kind as a user writes them."""
    cluster, network = row.cluster, row.written.rpartition("@")[2] if "@" in row.written else ""
    kind = cluster.name if cluster.name in node_names() else f"{cluster.devices_per_node}x{cluster.device.name}"
    return f"{num_nodes}x{kind}" + (f"@{network}" if network else "")
