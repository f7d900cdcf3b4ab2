"""One more run of a measured point on each node of a cluster whose nodes are unlike: it shows how they differ.

Each node measures its matmul peak in its first trial, at no cost. Where peaks are alike, references would cost a trial
a node and change no choice: from run to run figures differ as much (`python -m benchmarks.side_by_side`).
"""

import math
from collections import Counter
from collections.abc import Collection

from platform.search.loop.transitions import ExplorationTrial
from platform.study.history import History
from search_spaces.candidate import Candidate
from trainers.records.measurement import Measurement, Outcome

UNLIKE = 0.05
"""Share by which the fastest node's matmul peak is above the slowest one's in a cluster of unlike nodes."""
WORTH = 2
"""Times that all nodes must still be filled by the search before references are worth their time."""


class References:
    """The runs of a study's reference point that a session has begun."""

    def __init__(self) -> None:
        self._begun: Counter[frozenset[str]] = Counter()

    def due(
        self, history: History, nodes: Collection[str], *, num_layouts: int, num_lanes: int
    ) -> ExplorationTrial | None:
        """Returns the run of the reference point on the nodes at these addresses, where one is missing and the search
        goes on for a while: it has `num_layouts`, and `num_lanes` of them run at a time.

        The point is the first that ran well.
        """
        place = frozenset(nodes)
        if num_lanes < 2 or not place or self._begun[place] or not _are_unlike(history):
            return None
        num_left = num_layouts - len({start.key for start in history.trials})
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


def _are_unlike(history: History) -> bool:
    """Returns whether nodes' matmul peaks differ. CPUs' do, by what else runs there."""
    on_gpus = history.header is not None and history.header.cluster.device_kind == "cuda"
    peaks = [peak.tflops for peak in history.peaks if peak.precision == history.peaks[0].precision] if on_gpus else []
    return bool(peaks) and max(peaks) > (1 + UNLIKE) * min(peaks)


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
