"""Computes the times of optimizer steps from a clock's spans and an engine's phases, and combines losses over ranks."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from trainers.marks.step import StepPhase, StepResult


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """Times of some optimizer steps on one rank. Parts are seconds per step; parts of micro-steps are None if the
    engine does not mark them.
    """

    total_s: float
    """Seconds of all steps together."""
    steps_s: list[float]
    first_micro_s: float | None
    """Mean seconds of the first micro-step; equal to the last one if there is only one. Each micro-step includes an
    equal share of a counting pass ahead of all.
    """
    middle_micro_s: float | None
    """Mean seconds of the micro-steps in between; if there are none, of the longer of first and last."""
    last_micro_s: float | None
    optimizer_s: float
    schedule_s: float
    """Seconds of everything before the optimizer's part of a step."""
    longest_beat_s: float
    """Longest part between two marks: a micro-step or a whole schedule."""


def timed_steps(spans: Sequence[float], phases: Sequence[tuple[StepPhase, ...]]) -> TimedSteps:
    """Returns the times of steps. `spans` are the seconds of every phase of every step; `phases` are the phases of each
    step.

    Raises:
        ValueError: steps have different phases, the number of spans is wrong, or a step does not end with its only
            optimizer step.
    """
    of_step = phases[0]
    if len(set(phases)) > 1 or len(spans) != sum(map(len, phases)):
        phase_names = " and ".join(sorted({", ".join(phase) for phase in phases}))
        raise ValueError(
            f"an engine marks the phases that its steps name, in every step the same: got {len(spans)} marked phases in"
            f" {len(phases)} steps of {phase_names}"
        )
    if of_step[-1:] != (StepPhase.OPTIMIZER_STEP,) or of_step.count(StepPhase.OPTIMIZER_STEP) != 1:
        raise ValueError(f"a step ends with its one optimizer step, got phases {', '.join(of_step)}")
    size = len(of_step)
    steps = [spans[i : i + size] for i in range(0, len(spans), size)]
    counts = of_step[0] is StepPhase.COUNTING
    by_micro_step = set(of_step[counts:-1]) == {StepPhase.MICRO_STEP}
    parts = [_with_counting(step) for step in steps] if counts else steps
    first = statistics.fmean(step[0] for step in parts) if by_micro_step else None
    last = statistics.fmean(step[-2] for step in parts) if by_micro_step else None
    middle = (
        statistics.fmean(statistics.fmean(step[1:-2] or (max(step[:-1]),)) for step in parts) if by_micro_step else None
    )
    marked = [part for part in (first, middle, last) if part is not None and not counts]
    return TimedSteps(
        total_s=sum(spans),
        steps_s=[sum(step) for step in steps],
        first_micro_s=first,
        middle_micro_s=middle,
        last_micro_s=last,
        optimizer_s=statistics.fmean(step[-1] for step in steps),
        schedule_s=statistics.fmean(sum(step[:-1]) for step in steps),
        longest_beat_s=max(marked or (max(step[:-1]) for step in steps)),
    )


def _with_counting(step: Sequence[float]) -> list[float]:
    """Returns the seconds of a step's micro-steps, each with its share of the counting ahead of them, and of its
    optimizer step: a step of more micro-steps counts as much longer.
    """
    counting_s, *micro_steps_s, optimizer_s = step
    return [*(seconds + counting_s / len(micro_steps_s) for seconds in micro_steps_s), optimizer_s]


def losses_of(results: Sequence[StepResult], gather: Callable[[Any], list[Any]]) -> list[float]:
    """Returns the mean loss of each step over the tokens of all ranks that computed one; equal on every rank. Waits for
    the device.

    Raises:
        ValueError: no rank computed a loss.
    """
    ranks = gather([(float(result.loss_sum), int(result.num_tokens)) for result in results])
    losses: list[float] = []
    for step in zip(*ranks, strict=True):
        num_tokens = sum(tokens for _, tokens in step)
        if not num_tokens:
            raise ValueError("an engine's step gives its loss on one rank at least, got none on any")
        losses.append(sum(loss for loss, tokens in step if tokens) / num_tokens)
    return losses
