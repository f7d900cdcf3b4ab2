"""The arithmetic of the ladder, pure: the memory of the next rung, and the time of a full step."""

import math
from collections.abc import Sequence

from trainers.host.failures import size
from trainers.measuring.intervals import interval
from trainers.records.job import Job, MemoryPoint
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

HEADROOM = 0.97
"""Share of a device that may be reserved before a rung counts as `thrash`."""
SURE_GROWTH = 0.9
"""Share of a peak's predicted growth that is certain: H200s measured 0 to 9 % less where it was above 10 GiB
(`docs/measurements`, BLOOM 7b1).
"""
AGAIN = 0.5
"""Seconds of a rung's first step over those of the trial's first rung: compiling took 5.7 s in the middle of 113 later
rungs on H100 and H200, 13.1 in that of 153 first ones (column compile_s of docs/measurements).
"""
SHORT_ACCUM = 3
"""Micro-steps of a measured step where a full one has more: a first, a middle and a last one, for `step_time_s`.

Two would do for memory: accumulated gradients beside activations are a peak that one micro-step never shows.
"""


def timed_accum(grad_accum: int, *, all_micro_steps: bool = False) -> int:
    """Returns the micro-steps of the timed step that stands for one of `grad_accum`: all of them with
    `all_micro_steps`, else a few from which it is derived.
    """
    return grad_accum if all_micro_steps else min(grad_accum, SHORT_ACCUM)


def with_headroom_gib(limit_gib: float, outside_gib: float) -> float:
    """Returns the most GiB of a device that a process may reserve before it counts as `thrash`.

    `limit_gib` is what it may reserve at all, `outside_gib` what context and libraries hold beside.
    """
    return HEADROOM * (limit_gib + outside_gib) - outside_gib


def predict_gib(
    memory_points: Sequence[MemoryPoint], micro_batch: int, predicted_gib: Sequence[tuple[int, float]] = ()
) -> float | None:
    """Returns the predicted allocated peak at `micro_batch` in GiB: each phase's line through its last two points, and
    the larger of them.

    A third point corrects by its residual to the line of the two before it, where that line was too low. One point has
    no slope: it then has the certain share of the growth in `predicted_gib`, the cost model's peak by micro-batch. None
    where nothing is known, or nothing predicted.
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
    """Returns those of `rungs` whose predicted peak is above `limit_gib`, as skipped, with the reason."""
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
    """Returns the seconds of a step of `grad_accum` micro-steps, at least 2, from the parts of a shorter one.

    `first_s` is the micro-step that begins a step, `last_s` the one that ends it; all others are as `middle_s`. The
    three differ: gradients are copied in the first and added to after, and may be exchanged in the last alone.
    """
    return first_s + (grad_accum - 2) * middle_s + last_s + optimizer_s


def upper_bound_tokens_per_s(tokens_per_step: int, full_s: Sequence[float]) -> float:
    """Returns the largest plausible tokens/s of a rung: the upper end of their 95 % interval over windows.

    `full_s` are the seconds of a full step, one for each window; infinite from fewer than two.
    """
    fastest_s, _ = interval(full_s)
    return tokens_per_step / fastest_s if fastest_s > 0 else math.inf


def best_above_tokens_per_s(tokens_per_s: float, micro_batch: int, largest: int) -> float:
    """Returns the most that any micro-batch up to `largest` can reach on a layout that has `tokens_per_s` at
    `micro_batch`: at best a micro-step of a larger micro-batch takes no longer.
    """
    return tokens_per_s * max(largest, micro_batch) / micro_batch


def may_begin(left_s: float, before: Measurement | None) -> bool:
    """Returns whether a rung may begin `left_s` before the time that is reserved for what follows its trial: not where
    the steps of the rung `before` it took longer. Each micro-batch is compiled anew, a trial's first one for longest.
    """
    if before is None or not before.step_times_s:
        return left_s >= 0
    first_s, *others_s = before.step_times_s
    is_first = before.startup_s is not None
    return left_s >= (AGAIN if is_first else 1.0) * first_s + sum(others_s)


def deadline_s(job: Job, work_s: float, allowance_s: float) -> float:
    """Returns the seconds within which rank 0 must report again, where its next work should take `work_s`.

    It is wide, since it is for a hang that no worker detects: the workers' watchdogs, which allow `allowance_s` a
    micro-step, should always act first. The first step's share covers the other time without a report, such as taking
    the process group down.
    """
    return job.first_step_s + 4 * job.timing.rung_s + 4 * allowance_s + 2 * work_s


def extrapolated(nearer: tuple[int, float], beyond: tuple[int, float], x: int) -> float:
    """Returns the line through both points at `x`, at least its value at the second: memory grows with
    micro-steps.
    """
    (x0, y0), (x1, y1) = nearer, beyond
    return y1 + max(0.0, (y1 - y0) / (x1 - x0)) * (x - x1)


def largest_accumulation(grad_accum: int, micro_step_s: float, optimizer_s: float, longest_step_s: float) -> int:
    """Returns the most micro-steps, at least 2, whose step stays within `longest_step_s`, up to `grad_accum`."""
    within = int((longest_step_s - optimizer_s) / max(micro_step_s, 1e-9))
    return min(grad_accum, max(2, within))
