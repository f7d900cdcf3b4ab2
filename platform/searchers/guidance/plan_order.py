"""How far a search may run ahead of its plan: the order of layouts that was predicted before any measurement."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from platform.cost_model.gp_inputs import Index
from platform.searchers.guidance.points import PointArrays
from platform.searchers.problem import Problem

MOST_AHEAD = 1
"""Layouts that may be tried although the plan has an untried one before them. A regression over a few trials
extrapolates wrongly where steps stall: on parts of recorded tables it was up to 10 trials behind its plan without a
bound, and needed more on average (docs/lab/search.csv#guided-ahead).
"""


class PlanOrder:
    """The layouts that a search has tried, compared with its plan.

    A plan is held to only if it predicts times from a known rate of products: one for software whose rate on these
    devices nobody measured is worth less than the first measurements, and one that stands in for a user's training is
    of another model.
    """

    def __init__(self, problem: Problem[Any], points: PointArrays) -> None:
        self._points = points
        columns = problem.columns
        self._is_held_to = columns is not None and not problem.stands_in and not np.any(columns.software.rate_sigma)
        self._best = np.full(len(problem.rows), -np.inf)
        """Rank of each candidate's best point."""
        np.maximum.at(self._best, points.owner, points.log_rank)
        self._tried: dict[int, list[int]] = {}
        """Candidates by group, in order."""

    def add(self, group: int, owner: int) -> None:
        """Counts the candidate as tried."""
        self._tried.setdefault(group, []).append(owner)

    def due(self, group: int, among: Index, running: Iterable[int] = ()) -> int | None:
        """Returns the place in `among`, points of one group, of the plan's first layout that is neither tried nor
        running; None if fewer than `MOST_AHEAD` of the others come after it in the plan. A group's first trial counts
        as none of them: it is the plan's, or was given.
        """
        begun = [*self._tried.get(group, ()), *running]
        if not self._is_held_to or not begun:
            return None
        rank = np.where(np.isin(self._points.owner[among], begun), -np.inf, self._points.log_rank[among])
        if rank.max(initial=-np.inf) == -np.inf or np.sum(self._best[begun[1:]] < rank.max()) < MOST_AHEAD:
            return None
        return int(np.argmax(rank))
