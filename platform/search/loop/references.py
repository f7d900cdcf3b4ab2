"""One more run of a point that was measured, on each node where none of it ran: it shows how nodes differ."""

import math
from collections import Counter
from collections.abc import Collection

from platform.search.loop.transitions import ExplorationTrial
from platform.study.history import History
from search_spaces.candidate import Candidate
from trainers.records.measurement import Measurement, Outcome

WORTH = 2
"""Times that all nodes must still be filled by the search before references are worth their time."""


class References:
    """The runs of a study's reference point that a session has begun."""

    def __init__(self) -> None:
        self._begun: Counter[frozenset[str]] = Counter()

    def due(
        self, history: History, nodes: Collection[str], *, num_left: int, num_lanes: int
    ) -> ExplorationTrial | None:
        """Returns the run of the reference point on the nodes at these addresses, where one is missing and the search
        goes on for a while: it has `num_left` layouts to try, and `num_lanes` of them run at a time.

        The point is the first that ran well.
        """
        place = frozenset(nodes)
        if num_lanes < 2 or not place or self._begun[place]:
            return None
        if num_left < WORTH * num_lanes and not history.paced:
            return None
        point = history.paced[0] if history.paced else _first(history)
        if point is None or place in {frozenset(run.addresses) for run in (*_own(history, point), *history.paced)}:
            return None
        self._begun[place] += 1
        candidate = Candidate(
            recipe=point.recipe, layout=point.layout, micro_batches=(point.batch.micro_batch,), refine=False
        )
        return ExplorationTrial(candidate=candidate, rungs=(point.batch,), paces=True)


def _first(history: History) -> Measurement | None:
    return next(
        (
            m
            for m in history.measurements
            if m.outcome is Outcome.OK and m.addresses and math.isfinite(m.tokens_per_s or math.nan)
        ),
        None,
    )


def _own(history: History, point: Measurement) -> tuple[Measurement, ...]:
    """Returns the search's own run of the point."""
    key = f"{point.recipe.id}-{point.layout.id}"
    return tuple(run for run in history.measured(key) if run.batch == point.batch)
