"""Shows the layouts that were not tried, as lines of the table and fields of `--json`."""

from typing import Any

from platform.common.text import figure, plural
from platform.study.result.coverage import Coverage
from trainers.records.journal import PlannedLayout
from trainers.spec.codec import to_json

_MOST_LISTED = 6
"""Number of untried layouts that are listed; the others are counted."""


def not_tried_lines(coverage: Coverage | None) -> list[str]:
    """Returns the table's lines on layouts that were not tried; empty if all were."""
    if coverage is None or not coverage.not_tried:
        return []
    listed, more = coverage.not_tried[:_MOST_LISTED], len(coverage.not_tried[_MOST_LISTED:])
    predicted = any(planned.tokens_per_s is not None for planned in coverage.not_tried)
    remark = "" if predicted else " (none is predicted: the cost model has no such device)"
    lines = [f"Not tried: {len(coverage.not_tried)} of {plural(coverage.num_layouts, 'layout')}{remark}."]
    lines += [f"  {planned.layout.label}{_predicted(planned)}" for planned in listed]
    return [*lines, f"  and {more} more, see --json"] if more else lines


def _predicted(planned: PlannedLayout) -> str:
    if planned.tokens_per_s is None:
        return ""
    figures = f"predicted {figure(planned.tokens_per_s)} tokens/s, {figure(planned.peak_gib)} GiB"
    return f", MBS {planned.micro_batch}: {figures}"


def coverage_json(coverage: Coverage | None) -> dict[str, Any]:
    """Returns the coverage as fields of `--json`; null values if the journal states no plan."""
    if coverage is None:
        return {"layouts_tried": None, "layouts_planned": None, "not_tried": None}
    return {
        "layouts_tried": coverage.num_tried,
        "layouts_planned": coverage.num_layouts,
        "not_tried": [_json(planned) for planned in coverage.not_tried],
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
