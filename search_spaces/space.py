"""`Space`: what may be tried for one model, and `Candidate`: one (recipe, layout) of it with its ladder."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from trainers.layout import BatchPoint, Layout
from trainers.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One recipe on one layout, with the micro-batches its trial may climb, ascending."""

    recipe: Recipe
    layout: Layout
    micro_batches: tuple[int, ...]

    @property
    def key(self) -> str:
        """What tells two candidates of a study apart."""
        return f"{self.recipe.id}-{self.layout.id}"

    def batch_points(self) -> tuple[BatchPoint, ...]:
        """The ladder's rungs, upwards."""
        return tuple(BatchPoint.of(self.recipe, self.layout, micro_batch) for micro_batch in self.micro_batches)
