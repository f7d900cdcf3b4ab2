"""Finds rows measured under more other load than the fastest row, whose figures may therefore be too low."""

import statistics
from collections.abc import Iterable, Sequence

from platform.study.result.ranking import PointRuns
from trainers.records.measurement import TIMED, Measurement

BESIDE = 0.2
"""Extra share of the processors that other processes may take during a row, compared with the fastest row."""
LESS_BUSY = 1.5
"""Factor by which the GPUs may be busier at a smaller micro-batch of the same layout. A smaller one waits more, so a
larger factor means that the row was disturbed.
"""


def beside_others(of_recipe: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the points that might be fastest without the disturbance of their rows, the likeliest first."""
    timed = [point for point in of_recipe if point.search and point.search.outcome in TIMED]
    fastest = max(timed, key=lambda point: point.derived_tokens_per_s, default=None)
    if fastest is None or fastest.search is None:
        return []
    rows = [point.search for point in timed if point.search]
    of_layout: dict[str, list[Measurement]] = {}  # limits comparisons: a study may have thousands of rows
    for row in rows:
        of_layout.setdefault(row.layout.id, []).append(row)
    usual = _share_of_others(fastest.search)
    speeds = [
        (point.derived_tokens_per_s * _possible(row, usual, of_layout[row.layout.id]), point)
        for row, point in zip(rows, timed, strict=True)
    ]
    above = [(speed, point) for speed, point in speeds if speed > fastest.derived_tokens_per_s]
    return [point for _, point in sorted(above, key=lambda pair: -pair[0])]


def _possible(row: Measurement, usual: float, of_layout: Iterable[Measurement]) -> float:
    """Returns the factor by which the row might have been faster undisturbed.

    This is 1 unless others took more of its processors than the `usual` share, or its GPUs were less busy than at a
    smaller micro-batch among the rows `of_layout`.
    """
    more = _share_of_others(row) - usual
    busier = max((_busier(row, other) for other in of_layout), default=1.0)
    return (busier if busier > LESS_BUSY else 1.0) / (1 - min(more, 0.9) if more > BESIDE else 1.0)


def _share_of_others(row: Measurement) -> float:
    """Returns the share of the processors taken by other processes and by other virtual machines, 0 to 1."""
    shares = (statistics.fmean(values) for values in (row.others_busy_pct, row.steal_pct) if values)
    return sum(shares) / 100


def _busier(row: Measurement, other: Measurement) -> float:
    """Returns how many times busier the GPUs were in `other`, of the same layout; 1 if its micro-batch is not
    smaller.
    """
    if not row.sm_clock_mhz or other.batch.micro_batch >= row.batch.micro_batch:
        return 1.0
    return other.utilization_pct / row.utilization_pct if other.utilization_pct and row.utilization_pct else 1.0
