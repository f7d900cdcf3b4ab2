"""Finds the best layout by number of devices: days and device-days, fewest nodes, and batch ramp-ups."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from platform.common.errors import InputError
from platform.cost_model.hardware import MOST_DEVICES, ClusterSpec
from platform.cost_model.placement import fullest_rank
from platform.cost_model.predict import SURE, predict
from platform.plan.best_layouts import best_plan, parts_gib, with_whole_batch
from platform.plan.planned import PredictedLayout
from platform.plan.points import points_of
from platform.plan.projection import StudyPrior
from search_spaces.space import Space
from trainers.spec.recipe import Recipe

_LARGEST_BATCH = 10_000_000
EFFICIENCY = 0.8
"""Least share of a ramp-up phase's best rate per device; the largest number of nodes that keeps it is chosen."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AtSize:
    """The best layout on one number of devices, or the reason why there is none."""

    num_devices: int
    planned: PredictedLayout | None
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RampPhase:
    """One phase of a batch ramp-up."""

    global_batch: int
    num_nodes: int
    planned: PredictedLayout
    efficiency: float
    """Rate per device divided by the best rate of the phase."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RoundedBatch:
    """A number of nodes on which a model fits only with its global batch rounded up to a multiple of their devices."""

    num_nodes: int
    global_batch: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fewest:
    """The smallest number of nodes on which a model fits."""

    num_nodes: int
    recipe: Recipe
    """The recipe trained there, with the stated batch or one that the nodes share evenly."""
    planned: PredictedLayout
    parts_gib: Mapping[str, float]
    """Memory by part of the layout that needs least, GiB."""
    needed_gib: float
    rank: str
    """The pipeline rank with the most memory."""
    smallest: str
    """Label of the layout that needs least memory, with its micro-batch."""
    refused_sizes: tuple[tuple[int, str], ...]
    """(nodes, reason) for each number of nodes that is too small."""
    rounded: RoundedBatch | None
    """A rounded batch that fits on fewer nodes; None if there is none."""


def parse_counts(text: str) -> tuple[int, ...]:
    """Parses device counts: "2..3072" doubles from 2 to 3072, "4,8,16" is a list.

    Raises:
        InputError: the text is malformed, or a count is below 1.
    """
    try:
        if ".." in text:
            low, high = (int(part) for part in text.split("..", maxsplit=1))
            if 1 <= low <= high <= MOST_DEVICES:
                doubled = itertools.takewhile(lambda count: count < high, (low * 2**power for power in range(64)))
                return (*doubled, high)
        else:
            counts = tuple(int(part) for part in text.split(","))
            if all(1 <= count <= MOST_DEVICES for count in counts):
                return counts
    except ValueError:
        pass
    raise InputError(f"device counts are written 2..3072 or 4,8,16, up to {MOST_DEVICES:,}, got {text!r}")


UNSURE = f"memory suffices for no layout with {100 * SURE:.0f} % probability"


def at_size(
    space: Space, recipe: Recipe, cluster: ClusterSpec, taught: StudyPrior | None = None, *, fullest: float = 1.0
) -> AtSize:
    """Returns the best layout on exactly this cluster; for `fullest` see `best_plan`."""
    try:
        plan = best_plan(space, recipe, cluster, top=1, taught=taught, fullest=fullest)
    except InputError as error:
        return AtSize(num_devices=cluster.num_devices, planned=None, reason=str(error).partition(": ")[2])
    if not plan.best:
        return AtSize(num_devices=cluster.num_devices, planned=None, reason=f"out of memory; {plan.nearest}")
    return AtSize(num_devices=cluster.num_devices, planned=plan.best[0])


def against_devices(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    counts: Sequence[int],
    taught: StudyPrior | None = None,
) -> tuple[AtSize, ...]:
    """Returns the best layout for each count of the cluster's devices."""
    best: list[AtSize] = []
    for count in counts:
        try:
            part = cluster.with_devices(count)
        except InputError as error:
            best.append(AtSize(num_devices=count, planned=None, reason=str(error)))
        else:
            best.append(at_size(space, recipe, part, taught))
    return tuple(best)


def fewest_nodes(space: Space, recipe: Recipe, cluster: ClusterSpec, *, max_nodes: int = 1024) -> Fewest:
    """Returns the smallest number of nodes on which a layout of the space fits with a probability of at least `SURE`.

    A stated global batch is kept; an assumed one is replaced by the nearest batch that the nodes share evenly. If a
    stated batch excludes a smaller number of nodes on which a multiple of their devices would fit, the result names the
    first such number.

    Raises:
        InputError: no layout fits on `max_nodes` nodes.
    """
    refused_sizes: list[tuple[int, str]] = []
    rounded: RoundedBatch | None = None
    for num_nodes in range(1, max_nodes + 1):
        part = dataclasses.replace(cluster, num_nodes=num_nodes)
        whole_batch = with_whole_batch(space, recipe, part.num_devices)
        trained = whole_batch if "global_batch" in space.assumed else recipe
        size = at_size(space, trained, part)
        if size.planned is not None and is_sure(size):
            return _fewest(space, trained, part, size.planned, tuple(refused_sizes), rounded)
        refused_sizes.append((num_nodes, size.reason or f"{UNSURE}, the best with {_chance(size)}"))
        if rounded is None and whole_batch != trained and is_sure(at_size(space, whole_batch, part)):
            rounded = RoundedBatch(num_nodes=num_nodes, global_batch=whole_batch.global_batch)
    hint = "" if rounded is None else f"; {rounded.num_nodes} fit with --set global_batch={rounded.global_batch}"
    raise InputError(
        f"{recipe.model.name} does not fit in the memory of any of 1 to {max_nodes} nodes of"
        f" {cluster.devices_per_node} x {cluster.device.name}: {refused_sizes[-1][1]}{hint}"
    )


def is_sure(size: AtSize) -> bool:
    """Returns whether the best layout fits with a probability of at least `SURE`."""
    return size.planned is not None and size.planned.ok_probability >= SURE


def _chance(size: AtSize) -> str:
    return "none" if size.planned is None else f"{100 * size.planned.ok_probability:.0f} %: {size.planned.layout.label}"


def _fewest(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    planned: PredictedLayout,
    refused_sizes: tuple[tuple[int, str], ...],
    rounded: RoundedBatch | None,
) -> Fewest:
    points = points_of(space, recipe, cluster)
    columns = points.columns(cluster)
    memory = predict(columns).memory
    row = int(np.argmin(memory.needed_gib))
    layout = points.layouts[row]
    return Fewest(
        num_nodes=cluster.num_nodes,
        recipe=recipe,
        planned=planned,
        parts_gib=parts_gib(columns, row),
        needed_gib=float(memory.needed_gib[row]),
        rank=fullest_rank(layout, int(memory.binding_rank[row])),
        smallest=f"{layout.label}, micro-batch {points.batches[row].micro_batch}",
        refused_sizes=refused_sizes,
        rounded=rounded,
    )


def ramp_up(
    space: Space,
    recipe: Recipe,
    cluster: ClusterSpec,
    phases: Sequence[tuple[int, int | None]],
) -> tuple[RampPhase, ...]:
    """Returns for each (global batch, nodes or None) the layout and micro-batch to use.

    A phase without a number of nodes gets the largest number (by doubling, up to the cluster's) that keeps `EFFICIENCY`
    of its best rate per device.

    Raises:
        InputError: no layout fits for a phase.
    """
    planned_phases: list[RampPhase] = []
    for global_batch, num_nodes in phases:
        changed = dataclasses.replace(recipe, global_batch=global_batch)
        doubled = itertools.takewhile(lambda count: count <= cluster.num_nodes, (2**power for power in range(32)))
        sizes = {
            nodes: at_size(space, changed, dataclasses.replace(cluster, num_nodes=nodes))
            for nodes in sorted({*doubled, cluster.num_nodes} | ({num_nodes} if num_nodes else set()))
        }
        rates = {
            nodes: size.planned.tokens_per_s / size.num_devices
            for nodes, size in sizes.items()
            if size.planned is not None
        }
        if not rates or (num_nodes and num_nodes not in rates):
            reason = sizes[num_nodes or max(sizes)].reason
            raise InputError(f"no layout of {space.name} fits at global batch {global_batch}: {reason}")
        best = max(rates.values())
        nodes = num_nodes or max(count for count, rate in rates.items() if rate >= EFFICIENCY * best)
        planned = sizes[nodes].planned
        assert planned is not None
        planned_phases.append(
            RampPhase(global_batch=global_batch, num_nodes=nodes, planned=planned, efficiency=rates[nodes] / best)
        )
    return tuple(planned_phases)


def parse_phases(text: str) -> tuple[tuple[int, int | None], ...]:
    """Parses the phases of a batch ramp-up: "32,64,128", or with nodes "32:8,64:16".

    Raises:
        InputError: the text is malformed.
    """
    phases: list[tuple[int, int | None]] = []
    for part in text.split(","):
        batch, _, nodes = part.partition(":")
        try:
            phase = (int(batch), int(nodes) if nodes else None)
        except ValueError:
            phase = (0, None)
        if not 1 <= phase[0] <= _LARGEST_BATCH or not (phase[1] is None or 1 <= phase[1] <= MOST_DEVICES):
            raise InputError(f"phases are written BATCH,BATCH or BATCH:NODES,..., got {part!r}")
        phases.append(phase)
    return tuple(phases)
