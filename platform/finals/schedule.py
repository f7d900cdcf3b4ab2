"""Which run comes next after the search: the finalists in turn, then the winner's last run. Pure."""

import dataclasses
from collections.abc import Callable, Sequence

from platform.finals.ranking import PointRuns, points, ranked, speed_of
from trainers.layout import BatchPoint
from trainers.measurement import Measurement, Outcome

FINALISTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One more run of a batch point, in processes of its own."""

    point: Measurement
    repeat: int
    is_last: bool = False
    """Whether it is the winner's last: long, at the largest accumulation."""


def next_run(
    measurements: Sequence[Measurement],
    *,
    repeats: int,
    most: int | None = FINALISTS,
    last_wanted: Callable[[Measurement], bool] = lambda best: True,
    tried: frozenset[tuple[str, BatchPoint, int]] = frozenset(),
) -> Run | None:
    """The next run of one recipe, None when there is none.

    The best `most` points of the search (None for all) have `repeats` runs each, in turn and back again (A B C C B A
    A B C), so that what drifts with time falls on all alike. Then the best one has its last run, if `last_wanted`;
    where that changes who is best, so has the new one. `tried` are (layout id, batch point, repeat) that left
    nothing: they are not tried again.
    """
    of_search = [each for each in points(measurements) if each.search and each.search.outcome is Outcome.OK]
    of_search.sort(key=lambda point: -speed_of(_search(point)))
    finalists = of_search[:most]
    for repeat in range(1, repeats + 1):
        for point in finalists if repeat % 2 else reversed(finalists):
            lost = any(run.outcome is not Outcome.OK for run in point.runs)
            done = lost or any(run.repeat == repeat for run in point.runs)
            search = _search(point)
            if not done and (search.layout.id, search.batch, repeat) not in tried:
                return Run(point=search, repeat=repeat)
    best = next(iter(ranked(measurements)), None)
    if best is None or best.search is None:
        return None
    search, last = best.search, repeats + 1
    had = any(run.repeat >= last for run in best.runs) or (search.layout.id, search.batch, last) in tried
    return None if had or not last_wanted(best.shown) else Run(point=search, repeat=last, is_last=True)


def _search(point: PointRuns) -> Measurement:
    assert point.search is not None
    return point.search
