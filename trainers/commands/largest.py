"""Finds the largest micro-batch at which a command fits into memory."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from trainers.commands.run import Run, Starter, follow
from trainers.records.job import Job
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint

LIMIT_S = 120.0
"""Seconds after which no further size is tried."""
STEPS = 2
"""Steps that a size must run: the second one has the optimizer's states beside activations."""
_ACCUM = 2
"""The most micro-steps of these steps: gradients are summed from the second on."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """A run that did not fit, with its point."""

    run: Run
    batch: BatchPoint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LargestFound:
    """The answer of a search for the largest micro-batch."""

    fitting: tuple[BatchPoint, ...]
    """The points that are assumed to fit, ascending."""
    ended: Misfit | None = None
    """The run at the smallest failed size; None if all fit."""
    remark: str = ""
    """A clause on a doubt about the answer; empty if there is none."""
    untried: int = 0
    """The largest micro-batch that was not tried and may fit; 0 if there is none."""


def largest(
    runs: Callable[[BatchPoint], Run],
    points: Sequence[BatchPoint],
    *,
    likely: int | None = None,
    capacity_gib: float | None = None,
    limit_s: float = LIMIT_S,
    has_time: Callable[[], bool] = lambda: True,
) -> LargestFound:
    """Returns the largest of these points (ascending) that fits according to `runs`.

    Sizes are doubled until one does not fit, then bisected. If a device holds `capacity_gib`, the line through the
    memory of two fitting sizes predicts the largest one, which is tried next with the one above it, so that few sizes
    are tried. The `likely` answer is tried first, because a start may take minutes; if it does not fit, sizes are
    halved until one does. Any failure but lack of memory ends the search at once; `limit_s` and the end of `has_time`
    end it when a size fits. After `limit_s` the answer is the line's if there is one.
    """
    began_s = time.monotonic()
    low, high = -1, len(points)
    ended: Misfit | None = None
    held: list[tuple[int, float]] = []
    while high - low > 1 and (ended is None or ended.run.outcome is Outcome.OOM):
        took_s = time.monotonic() - began_s
        if low >= 0 and (took_s > limit_s or not has_time()):
            is_late = took_s > limit_s
            # A wrong prediction costs one more run, for which the budget may have no time.
            most = _most(held, capacity_gib) if is_late else None
            assumed = max(low + 1, sum(point.micro_batch <= (most or 0) for point in points[:high]))
            found = LargestFound(fitting=tuple(points[:assumed]), ended=ended)
            if assumed == high:
                return found
            after = f"after {limit_s:.0f} s" if is_late else "for want of time in the budget"
            first, last = points[assumed].micro_batch, points[high - 1].micro_batch
            sizes = f"micro-batch {first} was" if first == last else f"micro-batches from {first} to {last} were"
            return dataclasses.replace(found, remark=f"{after} {sizes} not tried, and may fit", untried=last)
        most = _most(held, capacity_gib)
        index = _next(points, low, high, most, likely, bisects=ended is not None)
        batch, run = points[index], runs(points[index])
        if most is not None and (batch.micro_batch <= most) != (run.outcome is Outcome.OK):
            held.clear()  # memory is not linear
        if run.outcome is Outcome.OK:
            low = index
            if run.peak_gib is not None:
                held = [*held[-1:], (batch.micro_batch, run.peak_gib)]
        else:
            high, ended = index, Misfit(run=run, batch=batch)
    return LargestFound(fitting=tuple(points[: low + 1]), ended=ended)


def _most(held: Sequence[tuple[int, float]], capacity_gib: float | None) -> float | None:
    """Returns the micro-batch at which the line through two sizes and their GiB reaches the capacity; None if it is
    unknown, or memory does not grow.
    """
    if capacity_gib is None or len(held) < 2:
        return None
    (less, less_gib), (more, more_gib) = held
    slope_gib = (more_gib - less_gib) / (more - less)
    return more + (capacity_gib - more_gib) / slope_gib if slope_gib > 0 else None


def _next(
    points: Sequence[BatchPoint], low: int, high: int, most: float | None, likely: int | None, *, bisects: bool
) -> int:
    """Returns the index of the next size to try between `low` and `high`: the largest one up to `most`, or the next one
    if there is none. Without `most` it is the middle, or the first that is at least twice the size at `low`. Until one
    fits it is the `likely` one, then the first of at most half the size at `high`; without `likely` the smallest, since
    none fits if that does not.
    """
    if low < 0:
        sought = (likely or 0) if high == len(points) else points[high].micro_batch // 2
        return max((i for i in range(high) if points[i].micro_batch <= sought), default=0)
    sizes = range(low + 1, high)
    if most is not None:
        return max((i for i in sizes if points[i].micro_batch <= most), default=low + 1)
    if bisects:
        return (low + high) // 2
    return next((i for i in sizes if points[i].micro_batch >= 2 * points[low].micro_batch), high - 1)


def short_run(job: Job, start: Starter, batch: BatchPoint) -> Run:
    """Runs the job's command at the point for `STEPS` steps of few micro-steps; its outcome tells whether it fits."""
    short = dataclasses.replace(batch, grad_accum=min(batch.grad_accum, _ACCUM))
    return follow(
        job, start, short, lambda run, is_over: (Outcome.OK, "") if len(run.steps) >= STEPS or is_over else None
    )
