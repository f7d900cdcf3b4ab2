"""`SpaceFields`: the checked fields of a space, and the sentences that follow from them."""

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

    The layouts are the product of `axes`. The first axis varies slowest and an axis's first value is likely the best,
    so that an interrupted search has seen the likely good layouts. With `points` the space consists of these, and
    `axes` holds their common values.

    Raises:
        ValueError: no name, an axis that `Layout` lacks or without values, no micro-batch or one below 1, or points
            that share a name or contradict the axes.
    """

    name: str
    summary: str
    """One sentence for `--list`."""
    recipe: Recipe
    """The reference recipe."""
    axes: Mapping[str, tuple[Any, ...]]
    """Values by layout field. Missing fields keep `Layout`'s default; missing degrees are derived."""
    model_parallel: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict[str, tuple[Any, ...]])
    """Values by layout field for a further product of layouts that split the model; missing fields are as in `axes`.
    Degrees that do not divide the devices, the model or its batch, or that the engine lacks, are left out.
    """
    model_parallel_from: int = 2
    """Smallest number of devices with this further product."""
    variations: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    """Further products for layouts that do not split the model, whose values replace the values of `axes`: values tried
    one axis at a time (`search_spaces.variations`). Values that an engine lacks are left out silently.
    """
    narrowed: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """The reason, as the end of a sentence, for each axis that has fewer values than a `config.json` gives, or has them
    not in every combination.
    """
    optional_axes: tuple[str, ...] = ()
    """Axes to which `search_spaces.optional` adds installed optional kernels."""
    micro_batches: tuple[int, ...] = ()
    doubling: bool = False
    """Whether ladders continue beyond the largest of `micro_batches` by doubling (`ladder.doubled`), until the global
    batch, or in a plan or search memory, ends them.
    """
    finds_largest: bool = False
    """Whether a trial finds the largest divisor of a rank's batch that fits, and measures only that."""
    refine: bool = True
    """Whether every integer between the last micro-batch that fits and the first that does not is tried too."""
    further_recipes: tuple[Recipe, ...] = ()
    """Further recipes, each with its own winner, because only measurements of one recipe compete."""
    points: tuple[Point, ...] = ()
    assumed: tuple[str, ...] = ()
    """Fields of the recipe that nobody stated: length or batch missing in a `config.json`, and the batch of spaces that
    `search_spaces.load` knows by name.
    """
    chosen: tuple[str, ...] = ()
    """Axes that `--set` names: no other values are tried, and a plan includes degrees that no space has by itself, such
    as tp across nodes.
    """
    remarks: tuple[str, ...] = ()
    """Sentences on statements in the model's file that this project ignores."""
    tokens: float = 100e9
    """The token budget for which days and cost are reported."""
    device_memory_gib: float | None = None
    """Memory cap of a device unless the user gives one; None for all of its memory."""
    num_workers: int | None = None
    """Number of devices of a trial; None for all of the cluster's."""
    hang_floor_s: float = 60.0
    """A trial counts as hung after max(this, 10 x its slowest micro-step) seconds without a micro-step."""
    first_step_s: float = 300.0
    """Seconds allowed for building the model, compiling and the first micro-step of a batch point."""
    finalists: int = 3
    """Number of points that run again in fresh processes after the search."""
    repeats: int = 3
    """Number of runs of each best point in fresh processes after the search, unless the user gives one."""
    time_budget_s: float | None = None
    """Longest duration of a search in seconds, unless the user gives a budget; None for no limit."""
    is_stand_in: bool = False
    """Whether it was made as the miniature of another space, with few of its axes."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):  # type: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a space needs a name")
        check_types(self)
        wrong = [value for value in self.micro_batches if value < 1]
        if wrong or not (self.micro_batches or self.points):
            raise ValueError(f"space {self.name} needs micro-batches of at least 1, got {wrong or 'none'}")
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
        return (self.recipe, *self.further_recipes)

    @property
    def spans_nodes(self) -> bool:
        """Whether groups of the degrees in `IN_NODE` may span nodes, as `--set` or named points can request."""
        return bool(self.points) or not set(IN_NODE).isdisjoint(self.chosen)

    @property
    def assumption(self) -> str:
        """The sentence on the recipe's assumed values; "" if there are none."""
        if self.recipe.miniature_of:
            return ""
        values = " and ".join(f"{field} {getattr(self.recipe, field)}" for field in self.assumed)
        return f"{values} by default: change with --set" if values else ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences to show before the space is planned or searched."""
        return tuple(sentence for sentence in (self.assumption, *self.model_remarks) if sentence)

    @property
    def not_in_full(self) -> tuple[str, ...]:
        """A sentence per reason, on the axes that are not tried in full."""
        return tuple(narrowed_sentences(self.narrowed))

    @property
    def model_remarks(self) -> tuple[str, ...]:
        """Sentences on the model's file, and on lengths beyond the model's positions."""
        lengths = dict.fromkeys(recipe.length_remark for recipe in self.recipes)
        return tuple(sentence for sentence in (*self.remarks, *lengths) if sentence)
