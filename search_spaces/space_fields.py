"""`SpaceFields`: what a space states, checked, and the sentences that follow from it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from search_spaces.candidate import Point
from search_spaces.checks import check_types
from search_spaces.variations import narrowed_sentences
from trainers.spec.layout_axes import IN_NODE
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFields:
    """The fields of a `Space`: the layouts and batch points that may be tried for one model.

    The layouts are the product of `axes`: the first axis varies slowest and the first value of an axis is the one
    that is likely best, so a search that is cut short has seen the likely good ones. With `points` the space is
    exactly these, and `axes` holds what they share.

    Raises:
        ValueError: no name, an axis that `Layout` lacks or without values, a micro-batch below 1 or none at all,
            points that share a name or clash with the axes.
    """

    name: str
    summary: str
    """One sentence for `--list`."""
    recipe: Recipe
    """The reference recipe."""
    axes: Mapping[str, tuple[Any, ...]]
    """Layout field -> its values. Fields left out keep `Layout`'s default, degrees left out are filled."""
    model_parallel: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict[str, tuple[Any, ...]])
    """Values by layout field in a further product, of layouts that split the model; missing fields are as in `axes`.
    Degrees that do not divide the devices, the model or its batch, and those that an engine does not support, are left
    out.
    """
    model_parallel_from: int = 2
    """The smallest number of devices that has that further product."""
    variations: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    """Further products for layouts that do not split the model, each with its values in place of those of `axes`:
    what is tried one axis at a time (`search_spaces.variations`). What an engine lacks is left out silently.
    """
    narrowed: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """The reason, as the end of a sentence, for each axis that has fewer values than a `config.json` has, or not all of
    them in every combination.
    """
    optional_axes: tuple[str, ...] = ()
    """Axes to which `search_spaces.optional` adds the kernels of optional packages that are installed."""
    micro_batches: tuple[int, ...] = ()
    doubling: bool = False
    """Whether ladders go on from the largest of `micro_batches`, doubling (`ladder.doubled`), until the global batch
    ends them in the space and memory in a plan or search.
    """
    finds_largest: bool = False
    """Whether a trial finds the largest divisor of a rank's batch that fits, and measures it alone."""
    refine: bool = True
    """Whether every integer between the last micro-batch that fits and the first that does not is tried too."""
    further_recipes: tuple[Recipe, ...] = ()
    """Only measurements of one recipe compete: each of these has a winner of its own."""
    points: tuple[Point, ...] = ()
    assumed: tuple[str, ...] = ()
    """Fields of the recipe that nobody stated: of a `config.json` without length or batch, and the batch of the spaces
    that `search_spaces.load` knows by name.
    """
    chosen: tuple[str, ...] = ()
    """Layout fields that `--set` names, and the micro-batch: other values than those are not tried, and a plan has
    degrees that no space has by itself, as tp across nodes.
    """
    remarks: tuple[str, ...] = ()
    """Sentences on what the model's file states and this project leaves out."""
    tokens: float = 100e9
    """The token budget for which days and cost are reported."""
    device_memory_gib: float | None = None
    """Memory cap of a device unless the user gives one; None for all of its memory."""
    num_workers: int | None = None
    """Devices that a trial takes; None for all of the cluster's."""
    hang_floor_s: float = 60.0
    """A trial is hung after max(this, 10 x its slowest micro-step) without a micro-step."""
    first_step_s: float = 300.0
    """Seconds that building the model, compiling and the first micro-step of a rung may take."""
    finalists: int = 3
    """Number of points that run again in fresh processes after the search."""
    repeats: int = 3
    """Runs in fresh processes of the best points after the search, unless the user gives a number."""
    time_budget_s: float | None = None
    """Longest time of a search in seconds, unless the user gives a budget; None for no limit."""
    is_stand_in: bool = False
    """Whether it was made as the miniature of another space, with few of its axes."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):  # type: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a space needs a name")
        check_types(self)
        wrong = [value for value in self.micro_batches if value < 1]
        if wrong or not (self.micro_batches or self.points):
            raise ValueError(f"space {self.name} wants micro-batches of at least 1, got {wrong or 'none'}")
        if self.num_workers is not None and self.num_workers < 1:
            raise ValueError(f"num_workers of space {self.name} must be at least 1, got {self.num_workers}")
        for field in ("hang_floor_s", "first_step_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} of space {self.name} must be above 0, got {getattr(self, field)}")
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise ValueError(f"time_budget_s of space {self.name} must be above 0, got {self.time_budget_s}")
        names = [point.name for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError(f"points of space {self.name} share a name: {', '.join(names)}")
        many = [axis for axis, values in self.axes.items() if self.points and len(values) > 1]
        if many:
            raise ValueError(f"space {self.name} has named points: one value each for {', '.join(many)}")
        if "engine" not in self.axes and not (self.points and all("engine" in point.layout for point in self.points)):
            raise ValueError(f"space {self.name} names no engine: give axes an 'engine', such as ('fsdp',)")

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Every recipe, the reference first."""
        return (self.recipe, *self.further_recipes)

    @property
    def spans_nodes(self) -> bool:
        """Whether groups of `IN_NODE` may span nodes: as `--set` or named points ask for."""
        return bool(self.points) or not set(IN_NODE).isdisjoint(self.chosen)

    @property
    def assumption(self) -> str:
        """The sentence on the recipe's assumed values; "" where all were stated."""
        if self.recipe.miniature_of:
            return ""
        values = " and ".join(f"{field} {getattr(self.recipe, field)}" for field in self.assumed)
        return f"{values} by default: change with --set" if values else ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences to read before the space is planned or searched."""
        return tuple(sentence for sentence in (self.assumption, *self.model_remarks) if sentence)

    @property
    def not_in_full(self) -> tuple[str, ...]:
        """A sentence on the axes that are not tried in full, for each reason."""
        return tuple(narrowed_sentences(self.narrowed))

    @property
    def model_remarks(self) -> tuple[str, ...]:
        """The sentences on what the model's file states and on lengths that it was not made for."""
        lengths = dict.fromkeys(recipe.length_remark for recipe in self.recipes)
        return tuple(sentence for sentence in (*self.remarks, *lengths) if sentence)
