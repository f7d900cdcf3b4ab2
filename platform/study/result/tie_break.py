"""Contenders: the points that may be fastest if the machine was disturbed, and whether their order is resolved."""

from collections.abc import Sequence

from platform.study.result.ranking import DISTURBED, PointRuns, compared, pooled_spread
from trainers.records.measurement import Outcome

MOST = 3
"""Largest number of contenders, which is also the number of finalists."""


def contenders_of(order: Sequence[PointRuns], stopped: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the points of a ranking that may be fastest because the machine was disturbed, the leader first; empty if
    it was not.

    They are the leader, the points whose search figure is at most 10 % below the leader's, and unconfirmed points whose
    search figure exceeds the leader's median by more than `search_margin`; at most `MOST`. The last kind includes
    points `stopped` as slow: they were stopped beside a figure that the leader's runs did not reach. One that ran again
    stays a contender, though its search figure is too low to be close to the leader's.
    """
    if not order:
        return []
    leader = order[0]
    others = [*order[1:], *(point for point in stopped if _far_ahead(point, leader))]
    others.sort(key=lambda point: -point.derived_tokens_per_s)
    close = (1 - DISTURBED) * leader.derived_tokens_per_s
    close_points = [
        other
        for other in others
        if _far_ahead(other, leader)
        or other.derived_tokens_per_s >= close
        or (other.runs and _was_stopped(other) and leader.disturbed)
    ]
    candidates = [leader, *close_points][:MOST]
    is_open = close_points and any(candidate.disturbed or _far_ahead(candidate, leader) for candidate in candidates)
    return candidates if is_open else []


def stopped_of(of_recipe: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns one recipe's points that the search stopped as slow, without those that ran again and those of layouts
    that failed their gate.
    """
    stopped = [point for point in of_recipe if _was_stopped(point) and not point.runs]
    disqualified = {run.layout for point in of_recipe for run in point.runs if run.phase == "gate"} if stopped else ()
    return [point for point in stopped if point.main_run.layout not in disqualified]


def unresolved_of(order: Sequence[PointRuns], stopped: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns a ranking's leader and the contenders that it neither beats nor ties with; empty if there are none."""
    if not (contenders := contenders_of(order, stopped)):
        return []
    leader, *others = contenders
    spread = pooled_spread(order)
    still_open = [other for other in others if compared(leader, other, of_two=spread).resolution == "not resolved"]
    return [leader, *still_open] if still_open else []


def _was_stopped(point: PointRuns) -> bool:
    return point.search is not None and point.search.outcome is Outcome.SLOW


def _far_ahead(point: PointRuns, leader: PointRuns) -> bool:
    """Returns whether the leader is confirmed, the point is not, and its figure is far above the leader's median."""
    median = leader.derived_median or 0.0
    if not leader.runs or point.runs or not (1 - DISTURBED) * point.derived_tokens_per_s > median:
        return False  # the margin is at least DISTURBED, and takes time to compute
    return (1 - point.search_margin) * point.derived_tokens_per_s > median
