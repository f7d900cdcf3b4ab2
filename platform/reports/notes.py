"""The notes under a recipe's table: short reasons, what was skipped, and what marks mean."""

from collections.abc import Sequence

from platform.common import text
from platform.reports.summary import shortfall_gib
from trainers.values.cluster import Cluster
from trainers.values.measurement import TIMED, Measurement, Outcome

_MOST_SKIPPED = 6
"""Number of reasons for skipping that are listed; the rest is counted."""


def short_reason(measurement: Measurement, cluster: Cluster) -> str:
    """Returns why there is no figure, in a few words."""
    # An OOM without sizes is a kill for want of host memory.
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
    if not skipped:
        return []
    reasons: dict[str, list[Measurement]] = {}
    for row in skipped:
        reasons.setdefault(" ".join(row.reason.split()), []).append(row)
    layouts = len({row.layout.id for row in skipped})
    lines = [f"Skipped: {text.plural(len(skipped), 'batch point')} of {text.plural(layouts, 'layout')}."]
    for reason, rows in list(reasons.items())[:_MOST_SKIPPED]:
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        lines.append(f"  {rows[0].layout.label}, MBS {rows[0].batch.micro_batch}{more}: {reason}")
    num_more = sum(len(rows) for rows in list(reasons.values())[_MOST_SKIPPED:])
    return [*lines, f"  and {num_more} more, see --json"] if num_more else lines


def notes(
    measured: Sequence[Measurement], best: Measurement | None, omitted: Sequence[str], titles: Sequence[str]
) -> list[str]:
    lines: list[str] = []
    if best is not None:
        lines.append("* the winner")
    slow = sum(row.outcome is Outcome.SLOW for row in measured)
    if slow:
        lines.append(f"slow ({text.plural(slow, 'row')}): stopped early, as the most it could reach was below the best")
    for row in measured:
        if row.outcome not in TIMED and row.reason:
            point = f"{row.layout.label}, MBS {row.batch.micro_batch}"
            lines.append(f"Not counted: {point}: {row.outcome.value}, {' '.join(row.reason.split())}")
    if "runs" in titles:
        spread = ", std % their standard deviation, 95 % ±% half the interval of their mean" * ("std %" in titles)
        lines.append(f"runs: in fresh processes; the row is the one of median speed{spread}.")
    if any(row.step_time_derived for row in measured):
        lines.append("~ derived from the parts of a step with fewer micro-steps")
    legend = {
        "±%": "±%: half the distance of the step time's quartiles.",
        "TFLOP/s": "TFLOP/s: model FLOPs, recomputation not counted.",
        "% of peak": "% of peak: of the measured matmul peak.",
        "GiB": "GiB: most allocated, on the fullest device.",
    }
    if measured:
        lines.append(
            " ".join(note for title, note in legend.items() if not any(each.startswith(title) for each in omitted))
        )
    if omitted:
        lines.append(f"Left out at this width: {', '.join(omitted)}.")
    return lines
