"""States how many of the planned layouts a study has tried, and which are left."""

import dataclasses
from typing import Any

from platform.common.text import plural
from platform.study.history import History
from trainers.records.journal import PlannedLayout
from trainers.records.measurement import Outcome
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The layouts of one recipe: the number tried, and the rest."""

    num_tried: int
    not_tried: tuple[PlannedLayout, ...]
    """Layouts not tried, in the plan's order."""

    @property
    def num_layouts(self) -> int:
        """Number of layouts, without those that are known not to run."""
        return self.num_tried + len(self.not_tried)

    @property
    def words(self) -> str:
        """The coverage as text, such as "4 of 8 layouts", or "8 layouts" if all were tried."""
        tried = f"{self.num_tried} of " if self.not_tried else ""
        return f"{tried}{plural(self.num_layouts, 'layout')}"


def coverage(history: History, recipe: Recipe) -> Coverage | None:
    """Returns the recipe's coverage; None if the journal states no plan.

    A layout is not counted if all its planned rungs were skipped.
    """
    if history.planned is None:
        return None
    group = [measurement for measurement in history.measurements if measurement.recipe.id == recipe.id]
    tried_layouts = {measurement.layout for measurement in group if measurement.outcome is not Outcome.SKIPPED}
    skipped = {
        (measurement.layout, measurement.batch.micro_batch)
        for measurement in group
        if measurement.outcome is Outcome.SKIPPED
    }
    untried = [
        layout
        for layout in history.planned.layouts
        if layout.recipe == recipe.id and layout.layout not in tried_layouts
    ]
    return Coverage(
        num_tried=len(tried_layouts), not_tried=tuple(layout for layout in untried if not _is_skipped(layout, skipped))
    )


def _is_skipped(planned: PlannedLayout, skipped: set[tuple[Any, int]]) -> bool:
    return all((planned.layout, micro_batch) in skipped for micro_batch in planned.micro_batches)
