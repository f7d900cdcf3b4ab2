"""Pure arithmetic for a trial's ladder of batch points: the memory of the next point, and the time of a full step."""

import math
from collections.abc import Sequence

from trainers.host.failures import size
from trainers.measuring.intervals import interval
from trainers.records.job import Job, MemoryPoint
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

HEADROOM = 0.97
"""Share of a device's memory that may be reserved; above it a batch point counts as `thrash`."""
SURE_GROWTH = 0.9
"""Share of a peak's predicted growth that is certain: H200s measured 0 to 9 % less growth for peaks above 10 GiB
(`docs/measurements`, BLOOM 7b1).
"""
AGAIN = 0.5
"""Time of a batch point's first step relative to the first step of the trial's first batch point. Compiling took a
median of 5.7 s in 113 later batch points on H100 and H200, and 13.1 s in 153 first ones (column compile_s of
docs/measurements).
"""
SHORT_ACCUM = 3
"""Number of micro-steps in a timed step that replaces a longer step: a first, a middle and a last micro-step, for
`step_time_s`. Two suffice for memory, but one does not: accumulated gradients beside activations exceed its peak.
"""


def timed_accum(grad_accum: int, *, all_micro_steps: bool = False) -> int:
    """Returns the number of micro-steps to time for a step of `grad_accum`: all with `all_micro_steps`, else at most
    `SHORT_ACCUM`.
    """
    return grad_accum if all_micro_steps else min(grad_accum, SHORT_ACCUM)


def with_headroom_gib(limit_gib: float, outside_gib: float) -> float:
    """Returns the most GiB that a process may reserve before it counts as `thrash`. `limit_gib` is its allocator's
    limit, `outside_gib` the memory of context and libraries.
    """
    return HEADROOM * (limit_gib + outside_gib) - outside_gib


def predict_gib(
    memory_points: Sequence[MemoryPoint], micro_batch: int, predicted_gib: Sequence[tuple[int, float]] = ()
) -> float | None:
    """Returns the predicted peak of allocated memory at `micro_batch` in GiB; None if it cannot be predicted.

    Each phase is extrapolated by the line through its last two points, and the larger phase counts. If the last of
    three points lies above the line of the two before it, the difference is added. With one point, the certain share of
    the growth in `predicted_gib` (the cost model's peak by micro-batch) is added to it.
    """
    points = sorted(memory_points, key=lambda point: point.micro_batch)
    if len(points) < 2:
        predicted = dict(predicted_gib)
        if not points or not {points[0].micro_batch, micro_batch} <= predicted.keys():
            return None
        growth = predicted[micro_batch] - predicted[points[0].micro_batch]
        return max(points[0].forward_backward_gib, points[0].optimizer_gib) + SURE_GROWTH * max(0.0, growth)
    return max(
        _line([(p.micro_batch, p.forward_backward_gib) for p in points], micro_batch),
        _line([(p.micro_batch, p.optimizer_gib) for p in points], micro_batch),
    )


def misfits(
    job: Job, memory_points: Sequence[MemoryPoint], rungs: Sequence[BatchPoint], limit_gib: float
) -> list[Measurement]:
    """Returns the `rungs` whose predicted peak exceeds `limit_gib`, as skipped measurements with the reason."""
    skipped: list[Measurement] = []
    for batch in rungs:
        needs_gib = predict_gib(memory_points, batch.micro_batch, job.predicted_gib)
        if needs_gib is None or needs_gib <= limit_gib:
            continue
        reason = f"predicted {size(needs_gib)} from smaller micro-batches; {size(limit_gib)} may be used"
        skipped.append(job.measurement(batch, Outcome.SKIPPED, reason=reason))
    return skipped


def _line(points: list[tuple[int, float]], x: int) -> float:
    (x0, y0), (x1, y1) = points[-2:]
    slope = max(0.0, (y1 - y0) / (x1 - x0))
    residual = 0.0
    if len(points) > 2:
        (a0, b0), (a1, b1) = points[-3], points[-2]
        before = b1 + (b1 - b0) / (a1 - a0) * (x1 - a1)
        residual = max(0.0, y1 - before)
    return y1 + slope * (x - x1) + residual


def step_time_s(grad_accum: int, first_s: float, middle_s: float, last_s: float, optimizer_s: float) -> float:
    """Returns the seconds of a step with `grad_accum` micro-steps (at least 2) from the parts of a shorter step.

    All micro-steps but the first and the last take `middle_s`. The three differ: the first writes gradients, later ones
    add to them, and often only the last exchanges them.
    """
    return first_s + (grad_accum - 2) * middle_s + last_s + optimizer_s


def upper_bound_tokens_per_s(tokens_per_step: int, full_s: Sequence[float]) -> float:
    """Returns the upper end of the 95 % interval of a batch point's tokens/s. `full_s` are the seconds of a full step
    in each window; infinite for fewer than two.
    """
    fastest_s, _ = interval(full_s)
    return tokens_per_step / fastest_s if fastest_s > 0 else math.inf


def is_hopeless(job: Job, measured: Measurement) -> bool:
    """Returns whether larger batch points stay below the incumbent even if their micro-steps take no longer.

    No peak serves as the bound: real data may run faster than the matmul peak of random numbers, and a data sheet may
    be another device's.
    """
    best, speed, micro_batch = job.incumbent_tokens_per_s, measured.tokens_per_s, measured.batch.micro_batch
    if best is None or speed is None:
        return False
    return speed * max(job.rungs[-1].micro_batch, micro_batch) / micro_batch < best


def may_begin(left_s: float, before: Measurement | None) -> bool:
    """Returns whether a batch point may start with `left_s` seconds left for the trial: whether its steps, estimated
    from the previous batch point's steps, fit. Each micro-batch is compiled anew, the trial's first one for longest.
    """
    if before is None or not before.step_times_s:
        return left_s >= 0
    first_s, *others_s = before.step_times_s
    is_first = before.startup_s is not None
    return left_s >= (AGAIN if is_first else 1.0) * first_s + sum(others_s)


def deadline_s(job: Job, work_s: float, allowance_s: float) -> float:
    """Returns the seconds within which rank 0 must report again, if its next work should take `work_s`.

    The limit is wide, because it serves hangs that no worker detects; the workers' watchdogs, which allow `allowance_s`
    a micro-step, should act first. The first step's share also covers other time without a report, such as destroying
    the process group.
    """
    return job.first_step_s + 4 * job.timing.rung_s + 4 * allowance_s + 2 * work_s


def extrapolated(nearer: tuple[int, float], beyond: tuple[int, float], x: int) -> float:
    """Returns the line through both points at `x`, at least the second point's value, because memory does not fall with
    more micro-steps.
    """
    (x0, y0), (x1, y1) = nearer, beyond
    return y1 + max(0.0, (y1 - y0) / (x1 - x0)) * (x - x1)


def largest_accumulation(grad_accum: int, micro_step_s: float, optimizer_s: float, longest_step_s: float) -> int:
    """Returns the largest number of micro-steps, from 2 to `grad_accum`, whose step takes at most `longest_step_s`."""
    within = int((longest_step_s - optimizer_s) / max(micro_step_s, 1e-9))
    return min(grad_accum, max(2, within))
