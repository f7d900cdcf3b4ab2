"""The answer for several models and clusters, or for a deadline or cost: table, JSON object and exit code."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from platform.common.builder import BuildQuestion
from platform.common.errors import InputError
from platform.common.progress import Progress
from platform.common.text import plural
from platform.cost_model.hardware import ClusterSpec
from platform.plan.answers import Answer
from platform.plan.assumptions import Assumptions
from platform.plan.comparison import Compared, Demands, compare, fewest_that_meet
from platform.plan.comparison_table import row_json, show_comparison, show_smallest
from platform.plan.plan_options import PlanOptions
from platform.plan.points import recipes_of
from platform.plan.prices import check_prices
from platform.plan.subjects import cluster_of, space_of
from search_spaces.space import Space


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OfRecipe:
    """The rows of one recipe."""

    listed: tuple[Compared, ...]
    meeting: tuple[Compared, ...]
    """Rows that meet the demands: the listed ones, and for each kind of node the row with the fewest nodes."""

    @property
    def rows(self) -> list[Compared]:
        """All rows; rows found for the demands follow the listed cluster of the same device."""
        unlisted = [row for row in self.meeting if not row.listed]
        return [
            row
            for listed in self.listed
            for row in (listed, *(other for other in unlisted if other.cluster.device == listed.cluster.device))
        ]

    @property
    def smallest(self) -> Compared | None:
        """The row with the fewest devices that meets the demands, the cheapest of equals; None if there is none."""
        return min(self.meeting, key=lambda row: (row.cluster.num_devices, row.dollars or 0.0), default=None)

    @property
    def cheapest(self) -> Compared | None:
        """The cheapest row that meets the demands; None if there is none or a price is unknown."""
        if any(row.dollars is None for row in self.meeting):
            return None
        return min(self.meeting, key=lambda row: row.dollars or 0.0, default=None)


def compared(options: PlanOptions, console: Console) -> Answer:
    """Prints the table and returns its rows.

    Raises:
        InputError: the options are invalid.
        ClusterError: Ray fails.
    """
    demands = Demands(deadline_s=options.deadline, max_cost=options.max_cost)
    if not options.cluster:
        raise InputError("name each cluster of the comparison: --cluster 2x8xH100@400 --cluster 8xB200")
    spaces = [space_of(options.alone(name, options.cluster[0])) for name in options.space]
    options.check_comparison(spaces)
    with contextlib.ExitStack() as stack:
        builders = [
            stack.enter_context(BuildQuestion([recipe.model for recipe in space.recipes], name))
            for space, name in zip(spaces, options.space, strict=True)
        ]
        clusters = {
            written: cluster_of(options.alone(options.space[0], written), spaces, console)
            for written in options.cluster
        }
        _check_costs(options, clusters, console)
        spaces = [space.with_shared_batch([spec.num_devices for spec in clusters.values()]) for space in spaces]
        subject = f"{plural(len(spaces), 'model')} on {plural(len(clusters), 'cluster')}"
        with Progress(f"planning {subject}"):
            groups = [
                _of_recipe(options, space, [
                    compare(space, recipe, written, cluster, options.tokens or space.tokens, options.interruptions)
                    for written, cluster in clusters.items()
                ], demands)
                for space in spaces
                for recipe in recipes_of(space)
            ]  # fmt: skip
            for builder in builders:
                builder.check()
    assumed = _assumptions(options, spaces, clusters, console)
    rows = [row for group in groups for row in group.rows]
    show_comparison(rows, demands, options.interruptions, console)
    for group in groups if demands else ():
        show_smallest(group.listed[0], group.smallest, group.cheapest, demands, console)
    answer = {
        "software": options.software,
        "assumptions": assumed,
        "demands": dataclasses.asdict(demands),
        "comparison": [row_json(row, demands) for row in rows],
        "smallest": [row_json(group.smallest, demands) for group in groups if group.smallest is not None],
    }
    any_met = any(group.meeting for group in groups) if demands else any(row.best.planned for row in rows)
    return answer, 0 if any_met else 1


def _check_costs(options: PlanOptions, clusters: Mapping[str, ClusterSpec], console: Console) -> None:
    """Checks that each price is a cluster's and, for `--max-cost`, that one is known; prints clusters without one."""
    check_prices(options.price, clusters.values())
    unpriced = [written for written, cluster in clusters.items() if cluster.price_per_device_hour is None]
    if options.max_cost is None or not unpriced:
        return
    if len(unpriced) == len(clusters):
        first = unpriced[0]
        raise InputError(f"--max-cost needs the price of {first}: state it by --price {first}=DOLLARS/h")
    prices = " ".join(f"--price {written}=DOLLARS/h" for written in unpriced)
    console.print(f"Whether {' and '.join(unpriced)} keeps to the cost is not known without a price: {prices}")


def _of_recipe(options: PlanOptions, space: Space, rows: Sequence[Compared], demands: Demands) -> OfRecipe:
    if not demands:
        return OfRecipe(listed=tuple(rows), meeting=())
    first_of_kind = {row.kind: row for row in reversed(rows)}
    fewest = [fewest_that_meet(row, space, demands, options.interruptions) for row in first_of_kind.values()]
    keeping = [row for row in rows if row.meets(demands) == "yes"]
    further = [row for row in fewest if row is not None and row.written not in {other.written for other in keeping}]
    return OfRecipe(listed=tuple(rows), meeting=(*keeping, *further))


def _assumptions(
    options: PlanOptions, spaces: Sequence[Space], clusters: Mapping[str, ClusterSpec], console: Console
) -> list[dict[str, Any]]:
    """Prints the assumptions, one line for each model and cluster, and returns them as JSON objects."""
    answered: list[dict[str, Any]] = []
    for space in spaces:
        of_clusters = {
            written: Assumptions.of(options.alone(options.space[0], written), space, cluster)
            for written, cluster in clusters.items()
        }
        first = next(iter(of_clusters.values()))
        for sentence in (*space.model_remarks, f"{space.name}: {first.recipe}", *first.kernels):
            console.print(sentence, highlight=False)
        answered += [
            {"model": space.name, "cluster": written, **assumptions.to_json()}
            for written, assumptions in of_clusters.items()
        ]
    for written, cluster in clusters.items():
        assumptions = Assumptions.of(options.alone(options.space[0], written), spaces[0], cluster)
        words = [assumptions.network] if assumptions.several_nodes else []
        words += filter(None, [assumptions.large_node])
        console.print(f"{written}: {', '.join([*words, assumptions.cost])}", highlight=False)
    return answered
