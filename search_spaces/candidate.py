"""`Candidate`: a (recipe, layout) of a space with its ladder, and `RejectedLayout`: one that cannot run."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.degrees import reason_against
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.workload import flags_of

OWN = "own "
"""Stands before the name of an axis of a user's own training where axes are compared."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A named experiment: changes to the space's recipe and layout, and a single micro-batch."""

    name: str
    micro_batch: int
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    layout: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A recipe on a layout, with the micro-batches that its trial may measure, ascending."""

    recipe: Recipe
    layout: Layout
    micro_batches: tuple[int, ...]
    name: str = ""
    """Names of the points that it represents; "" if the space is a product of axes."""
    refine: bool = True
    """Whether micro-batches between the last that fits and the first that does not may be tried too."""
    finds_largest: bool = False
    """Whether a trial measures only the largest of its micro-batches that fits."""

    @property
    def key(self) -> str:
        return f"{self.recipe.id}-{self.layout.id}"

    @property
    def axes(self) -> dict[str, Any]:
        """Value by axis: the layout's fields and the recipe's id. For a command its own axes with `OWN` before
        their names, numeric values as numbers; an axis named like one of this project's need not mean it.
        """
        if self.recipe.workload:
            flags = flags_of(self.layout.flags)
            return {"recipe": self.recipe.id, **{OWN + name: _number(value) for name, value in flags.items()}}
        fields = {field.name: getattr(self.layout, field.name) for field in dataclasses.fields(self.layout)}
        return {"recipe": self.recipe.id, **fields}

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.tokens_per_step

    def batch_points(self) -> tuple[BatchPoint, ...]:
        return tuple(BatchPoint.of(self.recipe, self.layout, micro_batch) for micro_batch in self.micro_batches)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RejectedLayout:
    """A layout of the space that cannot run on this number of devices, with the reason in one sentence."""

    recipe: Recipe
    layout: Layout
    reason: str
    name: str = ""


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def joined(first: Candidate, second: Candidate) -> Candidate:
    """Returns one candidate for two points that differ only in their micro-batch, so that one trial measures both."""
    rungs = tuple(sorted({*first.micro_batches, *second.micro_batches}))
    return dataclasses.replace(first, micro_batches=rungs, name=f"{first.name}, {second.name}")


def ladder_of(
    recipe: Recipe, layout: Layout, micro_batches: Sequence[int], num_devices: int
) -> tuple[tuple[int, ...], str | None]:
    """Returns the micro-batches that divide the global batch, ascending, and the reason why the layout cannot run (None
    if it can).
    """
    reason = reason_against(recipe, layout, num_devices)
    if reason is not None:
        return (), reason
    ladder: list[int] = []
    for micro_batch in sorted(micro_batches, reverse=True):
        try:
            BatchPoint.of(recipe, layout, micro_batch)
        except ValueError as error:
            reason = str(error)
        else:
            ladder.insert(0, micro_batch)
    return tuple(ladder), None if ladder else reason
