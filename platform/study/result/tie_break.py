"""Contenders: the points that may be the fastest where the machine was disturbed, and whether their order is
resolved.
"""

from collections.abc import Iterable, Sequence

from platform.study.result.ranking import DISTURBED, PointRuns, compared, ranked
from trainers.records.measurement import Measurement

MOST = 3
"""Largest number of contenders, that of the finalists."""


def contenders(measurements: Iterable[Measurement]) -> list[PointRuns]:
    """Returns the contenders among the points of one recipe."""
    return contenders_of(ranked(measurements))


def contenders_of(order: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the points of a ranking that may each be the fastest because the machine was disturbed, the leader first;
    empty where it was not.

    They are the leader, the points that the search measured at most 10 % slower, and points without runs of their own
    whose figure of the search exceeds the leader's median by more than 10 % and by more than its interval.
    """
    if not order:
        return []
    leader, others = order[0], sorted(order[1:], key=lambda point: -point.derived_tokens_per_s)
    close = (1 - DISTURBED) * leader.derived_tokens_per_s
    close_points = [other for other in others if _far_ahead(other, leader) or other.derived_tokens_per_s >= close]
    candidates = [leader, *close_points][:MOST]
    is_open = close_points and any(candidate.disturbed or _far_ahead(candidate, leader) for candidate in candidates)
    return candidates if is_open else []


def unresolved(measurements: Iterable[Measurement]) -> list[PointRuns]:
    """Returns the leader of one recipe and the contenders that it is neither faster than nor tied with; empty where
    there are none, so that the leader is the winner.
    """
    return unresolved_of(contenders(measurements))


def unresolved_of(candidates: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the leader and those contenders that it is neither faster than nor tied with."""
    if not candidates:
        return []
    leader, *others = candidates
    still_open = [other for other in others if not _is_resolved(leader, other)]
    return [leader, *still_open] if still_open else []


def named_winner(measurements: Sequence[Measurement]) -> Measurement | None:
    """Returns the winner of one recipe; None where nothing ran, or where it is not resolved which point is the
    fastest.
    """
    order = ranked(measurements)
    return order[0].main_run if order and not unresolved(measurements) else None


def _far_ahead(point: PointRuns, leader: PointRuns) -> bool:
    """Returns whether the point was not run again and its figure is far above the leader's runs."""
    median = leader.derived_median or 0.0
    return bool(leader.runs) and not point.runs and (1 - point.search_margin) * point.derived_tokens_per_s > median


def _is_resolved(leader: PointRuns, other: PointRuns) -> bool:
    """Returns whether paired runs show that the leader is faster or that the two are tied."""
    return compared(leader, other).resolution != "not resolved"
