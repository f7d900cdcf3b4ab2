"""Pruning after an out-of-memory error: rules out only points that must need at least as much memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.cost_model.gp_inputs import MICRO_BATCH, Index
from platform.searchers.guidance.points import PointArrays
from platform.searchers.problem import Choice
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout

LIGHTER: Mapping[str, tuple[Any, ...]] = {
    name: declared.lighter for name, declared in axes_of(Layout).items() if declared.lighter
}
"""Values of the axes along which memory falls, all else equal; the heaviest first."""
CERTAIN = tuple(name for name, declared in axes_of(Layout).items() if declared.surely_lighter)
"""Axes in `LIGHTER` whose order holds without a prediction to confirm it. A stage that shards more may need more
memory, because on a small model or one device its buckets exceed its savings (BLOOM-7b1 on one H200: ZeRO-1 138 GiB,
ZeRO-0 121).
"""
ON_HOST = tuple(name for name, declared in axes_of(Layout).items() if declared.fills_host)
"""Axes in `LIGHTER` whose lighter values need more of the host's memory."""
FALLING = tuple(name for name, declared in axes_of(Layout).items() if declared.of_number == "lighter")
"""Axes whose larger numbers need less memory, such as the number of ranks that share one copy."""
IGNORED = (*(name for name, declared in axes_of(Layout).items() if declared.of_number == "no memory"), MICRO_BATCH)
"""Axes that the comparison ignores: model replicas change no rank's memory, and the rung gives the micro-batch."""


class Pruning:
    """Finds the points ruled out by an out-of-memory error at another point.

    A point is ruled out if it differs from the failed one only by a larger micro-batch, less checkpointing, less
    offload, less sharding or gradients held longer, and the cost model agrees. If the cost model does not know the
    devices, only micro-batch, checkpointing and offload count. A kernel or engine never rules out another.
    """

    def __init__(self, candidates: Sequence[Choice], points: PointArrays) -> None:
        self._points = points
        kinds: dict[tuple[Any, ...], int] = {}
        kind: list[int] = []
        ranks: list[list[float]] = []
        for candidate in candidates:
            axes = candidate.axes
            plain = tuple(
                value
                for axis, value in axes.items()
                if axis not in LIGHTER and axis not in FALLING and axis not in IGNORED
            )
            kind.append(kinds.setdefault(plain, len(kinds)))
            ranks.append(
                [_rank(LIGHTER[axis], axes[axis]) for axis in LIGHTER if axis in axes]
                + [-float(axes.get(axis, 1)) for axis in FALLING]
            )
        self._kind: Index = np.array(kind, dtype=np.int64)
        owners = self._kind[points.owner]
        order = np.argsort(owners, kind="stable")
        # A study of many layouts asks about hundreds of errors at once, each of which concerns few points.
        self._of_kind: list[Index] = np.split(order, np.searchsorted(owners[order], np.arange(1, len(kinds))))
        """Points by kind; a point only rules out points of its own kind."""
        self._ranks: npt.NDArray[np.float64] = np.array(ranks) if ranks else np.zeros((0, 1))
        axes_of_memory = [axis for axis in LIGHTER if candidates and axis in candidates[0].axes]
        self._certain = np.array([*(axis in CERTAIN for axis in axes_of_memory), *(False for _ in FALLING)])
        self._fills_host = np.array([*(axis in ON_HOST for axis in axes_of_memory), *(False for _ in FALLING)])

    def ruled_out(self, point: int, *, on_host: bool = False) -> Index:
        """Returns the points that must run out of memory because `point` did, including itself. If it ran out of host
        memory (`on_host`), points with less in host memory may fit.
        """
        points, owner = self._points, self._points.owner[point]
        alike = self._of_kind[self._kind[owner]]
        ranks, rank = self._ranks[points.owner[alike]], self._ranks[owner]
        above = ranks >= rank
        if on_host:
            above &= (ranks == rank) | ~self._fills_host
        out = ((ranks == rank) | (above & self._certain)).all(axis=1)
        if points.predicts_memory:
            out |= above.all(axis=1) & (points.log_needed[alike] >= points.log_needed[point])
        out &= points.micro_batch[alike] >= points.micro_batch[point]
        return alike[out | (alike == point)]


def _rank(order: tuple[Any, ...], value: Any) -> float:
    """Returns a rank that grows with memory; NaN for an unknown value, which compares only with itself."""
    return float(len(order) - order.index(value)) if value in order else np.nan
