"""Rows that were measured beside more other work than the fastest one, so that their figures may be too low."""

import statistics
from collections.abc import Iterable, Sequence

from platform.study.result.ranking import PointRuns
from trainers.records.measurement import TIMED, Measurement

BESIDE = 0.2
"""Share of the processors that others may take beside one row more than beside the fastest one."""
LESS_BUSY = 1.5
"""Times by which a GPU may be busier at a smaller micro-batch of the same layout, at which it waits more."""


def beside_others(of_recipe: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the points that might be the fastest by what disturbed their rows, the likeliest first."""
    timed = [point for point in of_recipe if point.search and point.search.outcome in TIMED]
    fastest = max(timed, key=lambda point: point.derived_tokens_per_s, default=None)
    if fastest is None or fastest.search is None:
        return []
    rows = [point.search for point in timed if point.search]
    of_layout: dict[str, list[Measurement]] = {}  # thousands of rows are not compared with each other
    for row in rows:
        of_layout.setdefault(row.layout.id, []).append(row)
    speeds = [
        (point.derived_tokens_per_s * _possible(row, fastest.search, of_layout[row.layout.id]), point)
        for row, point in zip(rows, timed, strict=True)
    ]
    above = [(speed, point) for speed, point in speeds if speed > fastest.derived_tokens_per_s]
    return [point for _, point in sorted(above, key=lambda pair: -pair[0])]


def _possible(row: Measurement, fastest: Measurement, of_layout: Iterable[Measurement]) -> float:
    """Returns how many times as fast the row might have been undisturbed: 1 where it was no more disturbed than the
    `fastest` and, at a smaller micro-batch, the rows `of_layout`.
    """
    more = _share_of_others(row) - _share_of_others(fastest)
    busier = max((_busier(row, other) for other in of_layout), default=1.0)
    return (busier if busier > LESS_BUSY else 1.0) / (1 - min(more, 0.9) if more > BESIDE else 1.0)


def _share_of_others(row: Measurement) -> float:
    """Returns the share of the processors that other processes and other machines took."""
    shares = (statistics.fmean(values) for values in (row.others_busy_pct, row.steal_pct) if values)
    return sum(shares) / 100


def _busier(row: Measurement, other: Measurement) -> float:
    """Returns how many times busier GPUs were in another row of the layout; 1 where its micro-batch is no smaller."""
    if not row.sm_clock_mhz or other.batch.micro_batch >= row.batch.micro_batch:
        return 1.0
    return other.utilization_pct / row.utilization_pct if other.utilization_pct and row.utilization_pct else 1.0
