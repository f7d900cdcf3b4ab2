"""How much of what was planned a study has tried, and what is left with its predictions."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from platform.common.text import figure, plural
from platform.study.history import History
from trainers.values.codec import to_json
from trainers.values.journal import PlannedLayout
from trainers.values.measurement import Measurement, Outcome
from trainers.values.recipe import Recipe

_MOST_LISTED = 6
"""Layouts not tried that are listed; the rest is counted."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The layouts of one recipe: how many were tried, and those that were not."""

    num_tried: int
    not_tried: tuple[PlannedLayout, ...]
    """In the order of the plan."""

    @property
    def num_layouts(self) -> int:
        """Layouts in all, without those that are known not to run."""
        return self.num_tried + len(self.not_tried)

    @property
    def words(self) -> str:
        """Such as "4 of 8 layouts", or "8 layouts" where all were tried."""
        of = f"{self.num_tried} of " if self.not_tried else ""
        return f"{of}{plural(self.num_layouts, 'layout')}"


def coverage(history: History, recipe: Recipe) -> Coverage | None:
    """What was tried of the recipe's layouts; None where the journal does not say what was planned.

    A layout all of whose planned rungs are known not to run is not counted.
    """
    if history.planned is None:
        return None
    group = [each for each in history.measurements if each.recipe.id == recipe.id]
    tried = {each.layout for each in group if each.outcome is not Outcome.SKIPPED}
    skipped = {(each.layout, each.batch.micro_batch) for each in group if each.outcome is Outcome.SKIPPED}
    left = [each for each in history.planned.layouts if each.recipe == recipe.id and each.layout not in tried]
    return Coverage(num_tried=len(tried), not_tried=tuple(each for each in left if not _is_skipped(each, skipped)))


def _is_skipped(planned: PlannedLayout, skipped: set[tuple[Any, int]]) -> bool:
    return all((planned.layout, each) in skipped for each in planned.micro_batches)


def not_tried_lines(tried: Coverage | None) -> list[str]:
    """What a table says of the layouts that were not tried; nothing where each was."""
    if tried is None or not tried.not_tried:
        return []
    listed, more = tried.not_tried[:_MOST_LISTED], len(tried.not_tried[_MOST_LISTED:])
    predicted = any(each.tokens_per_s is not None for each in tried.not_tried)
    remark = "" if predicted else " (none is predicted: the cost model has no such device)"
    lines = [f"Not tried: {len(tried.not_tried)} of {plural(tried.num_layouts, 'layout')}{remark}."]
    lines += [f"  {each.layout.label}{_predicted(each)}" for each in listed]
    return [*lines, f"  and {more} more, see --json"] if more else lines


def _predicted(planned: PlannedLayout) -> str:
    if planned.tokens_per_s is None:
        return ""
    figures = f"predicted {figure(planned.tokens_per_s)} tokens/s, {figure(planned.peak_gib)} GiB"
    return f", MBS {planned.micro_batch}: {figures}"


def coverage_json(tried: Coverage | None) -> dict[str, Any]:
    """The same as fields of what `--json` prints; null where the journal does not say what was planned."""
    if tried is None:
        return {"layouts_tried": None, "layouts_planned": None, "not_tried": None}
    return {
        "layouts_tried": tried.num_tried,
        "layouts_planned": tried.num_layouts,
        "not_tried": [_json(each) for each in tried.not_tried],
    }


def _json(planned: PlannedLayout) -> dict[str, Any]:
    return {
        "layout": {"id": planned.layout.id, "label": planned.layout.label, **to_json(planned.layout)},
        "micro_batches": list(planned.micro_batches),
        "predicted_micro_batch": planned.micro_batch,
        "predicted_tokens_per_s": planned.tokens_per_s,
        "predicted_step_time_s": planned.step_time_s,
        "predicted_gib": planned.peak_gib,
    }


def coverages(history: History, measurements: Sequence[Measurement]) -> dict[str, Coverage]:
    """By recipe id, of the recipes that have measurements."""
    recipes = {each.recipe.id: each.recipe for each in measurements}
    each_recipe = {recipe_id: coverage(history, recipe) for recipe_id, recipe in recipes.items()}
    return {recipe_id: tried for recipe_id, tried in each_recipe.items() if tried is not None}
