"""Finds the largest micro-batch at which a command fits into memory: doubling, then bisecting."""

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
    """The points that are taken to fit, ascending."""
    ended: Misfit | None = None
    """The run at the smallest of the sizes that failed; None where all fit."""
    remark: str = ""
    """A clause on what stands against the answer; empty for nothing."""


def largest(
    runs: Callable[[BatchPoint], Run], points: Sequence[BatchPoint], *, limit_s: float = LIMIT_S
) -> LargestFound:
    """Returns the largest of these points, ascending, that `runs` says to fit. Each size is at least twice the one
    before until one does not fit, then the middle of those between is tried.

    Anything but lack of memory ends it at once, as does the limit of time.
    """
    began_s = time.monotonic()
    low, high = -1, len(points)
    ended: Misfit | None = None
    while high - low > 1 and (ended is None or ended.run.outcome is Outcome.OOM):
        if low >= 0 and time.monotonic() - began_s > limit_s:
            untried = points[low + 1].micro_batch
            remark = f"after {limit_s:.0f} s no micro-batch from {untried} on was known to fit, and none was tried"
            return LargestFound(fitting=tuple(points[: low + 1]), ended=ended, remark=remark)
        index = (low + high) // 2 if ended else _next(points, low)
        run = runs(points[index])
        if run.outcome is Outcome.OK:
            low = index
        else:
            high, ended = index, Misfit(run=run, batch=points[index])
    return LargestFound(fitting=tuple(points[: low + 1]), ended=ended)


def _next(points: Sequence[BatchPoint], low: int) -> int:
    """Returns the index of the first size that is at least twice that at `low`, or of the last one."""
    if low < 0:
        return 0
    sizes = range(low + 1, len(points))
    return next((i for i in sizes if points[i].micro_batch >= 2 * points[low].micro_batch), len(points) - 1)


def short_run(job: Job, start: Starter, batch: BatchPoint) -> Run:
    """Runs the job's command at the point for `STEPS` steps of few micro-steps; its outcome tells whether it fits."""
    short = dataclasses.replace(batch, grad_accum=min(batch.grad_accum, _ACCUM))
    return follow(
        job, start, short, lambda run, is_over: (Outcome.OK, "") if len(run.steps) >= STEPS or is_over else None
    )
