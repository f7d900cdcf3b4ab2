"""The notes below a recipe's table: short reasons, skipped points, and the meaning of marks."""

import re
from collections.abc import Sequence

from platform.common import text
from platform.report.columns import MeasuredRow
from platform.report.summary import shortfall_gib
from platform.report.table import Column
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.cluster import Cluster

_MOST_SKIPPED = 6
"""Number of reasons for skipping that are listed; the others are counted."""
_MOST_NAMED = 3
"""Largest number of layouts named with a shared reason; of more, one is named and the others are counted."""


def short_reason(measurement: Measurement, cluster: Cluster) -> str:
    """Returns in a few words why the measurement has no figure."""
    # An out-of-memory outcome without sizes means that the kernel killed the process for lack of host memory.
    if measurement.outcome is not Outcome.OOM or measurement.asked_gib is None:
        words = " ".join(measurement.reason.split())
        return words if len(words) <= 160 else words[:157] + "..."
    parts = [measurement.phase.replace("_", " and ")] if measurement.phase else []
    if measurement.rank is not None:
        parts.append(f"rank {measurement.rank}")
    parts.append(f"asked {text.figure(measurement.asked_gib)} GiB")
    if measurement.allocated_gib is not None:
        parts.append(f"held {text.figure(measurement.allocated_gib)}")
    missing = shortfall_gib(measurement, cluster)
    if missing:
        parts.append(f"{text.figure(missing)} too many")
    return ", ".join(parts)


def skipped_lines(skipped: Sequence[Measurement]) -> list[str]:
    """Returns the number of skipped points, then a line for each reason with its points.

    Reasons that differ only in figures are joined, and the first point's figures are shown.
    """
    if not skipped:
        return []
    reasons: dict[str, list[Measurement]] = {}
    for row in skipped:
        reasons.setdefault(_without_figures(row.reason), []).append(row)
    layouts = len({row.layout.id for row in skipped})
    lines = [f"Skipped: {text.plural(len(skipped), 'batch point')} of {text.plural(layouts, 'layout')}."]
    for rows in list(reasons.values())[:_MOST_SKIPPED]:
        first = " ".join(rows[0].reason.split())
        others = "" if all(row.reason == rows[0].reason for row in rows) else " (the first)"
        lines.append(f"  {_points(rows)}: {first}{others}")
    num_more = sum(len(rows) for rows in list(reasons.values())[_MOST_SKIPPED:])
    return [*lines, f"  {text.plural(num_more, 'point')} for other reasons, see --json"] if num_more else lines


def _without_figures(reason: str) -> str:
    """Returns the reason up to its first colon, without figures, which differ between points."""
    return re.sub(r"\d[\d.,]*", "", reason.partition(":")[0])


def _points(rows: Sequence[Measurement]) -> str:
    """Returns the points' layouts, each with its micro-batches; of many layouts the first, and the number of others."""
    by_layout: dict[str, list[Measurement]] = {}
    for row in rows:
        by_layout.setdefault(row.layout.id, []).append(row)
    named = [
        f"{of_layout[0].layout.label}, MBS {', '.join(dict.fromkeys(str(row.batch.micro_batch) for row in of_layout))}"
        for of_layout in by_layout.values()
    ]
    if len(named) <= _MOST_NAMED:
        return "; ".join(named)
    num_points = len(rows) - len(next(iter(by_layout.values())))
    return f"{named[0]}, and {text.plural(num_points, 'point')} of {len(named) - 1} other layouts"


def notes(
    measured: Sequence[Measurement],
    best: Measurement | None,
    omitted: Sequence[str],
    columns: Sequence[Column[MeasuredRow]],
) -> list[str]:
    """Returns the notes below a table of `measured`; `omitted` are titles of columns that had no room."""
    lines: list[str] = []
    if best is not None:
        lines.append("* the winner")
    slow = sum(row.outcome is Outcome.SLOW for row in measured)
    if slow:
        lines.append(f"slow ({text.plural(slow, 'row')}): stopped early, as the most it could reach was below the best")
    if beside := [row for row in measured if row.most_others_gib]:
        lines.append(f"Other processes held memory of the GPUs: {_points(beside)}")
    for row in measured:
        if row.outcome not in TIMED and row.reason:
            point = f"{row.layout.label}, MBS {row.batch.micro_batch}"
            winner = (best and best.tokens_per_s) or float("inf")
            times = (row.tokens_per_s or 0.0) / winner
            speed = f" ({times:.2f} times as fast as the winner in one run, not resolved)" if times > 1 else ""
            lines.append(f"Not counted: {point}: {row.outcome.value}, {' '.join(row.reason.split())}{speed}")
    keys = {column.key for column in columns}
    if "runs" in keys:
        spread = ", std % their standard deviation, 95 % ±% half the interval of their mean" * ("std_share" in keys)
        lines.append(
            "runs: in fresh processes; the row is that of median speed among those of the longest"
            f" accumulation{spread}."
        )
    if any(row.step_time_derived for row in measured):
        lines.append("~ derived from the parts of a step with fewer micro-steps")
    if measured:
        lines.append(" ".join(column.note for column in columns if column.note))
    if omitted:
        lines.append(f"Left out at this width: {', '.join(omitted)}.")
    return lines
