"""`StepMarks`: marks an engine's phases during steps, for the clock, the watchdog, a profiler and failure reports."""

from collections.abc import Callable
from contextlib import ExitStack

from trainers.marks.kinds import range_of
from trainers.marks.ranges import named
from trainers.marks.step import StepPhase
from trainers.measuring.device import DeviceClock
from trainers.measuring.run_context import RunContext

WHERE = {
    StepPhase.COUNTING: "forward_backward",
    StepPhase.MICRO_STEP: "forward_backward",
    StepPhase.SCHEDULE: "forward_backward",
    StepPhase.OPTIMIZER_STEP: "optimizer",
}
"""Name of each phase in a failure report."""


class StepMarks:
    """Marks the phases of consecutive steps on a clock: one at each beginning and one at the end of the last phase."""

    def __init__(
        self,
        context: RunContext,
        clock: DeviceClock,
        *,
        first_step: int,
        allowed_s: float | None,
        on_optimizer: Callable[[], None] | None = None,
    ) -> None:
        """Starts without marks. `allowed_s` is the watchdog's limit for a phase (None for its own); `on_optimizer` is
        called when an optimizer step begins.
        """
        self._context, self._clock = context, clock
        self._step, self._allowed_s, self._on_optimizer = first_step, allowed_s, on_optimizer
        self._in_step = 0
        self._pending = 0
        self._range = ExitStack()

    def begin(self, phase: StepPhase) -> None:
        """Marks the beginning of `phase`, which ends the previous phase."""
        self._range.close()
        self._clock.mark()
        if phase is StepPhase.OPTIMIZER_STEP:
            if self._on_optimizer is not None:
                self._on_optimizer()
        else:
            activity = f"{phase} {self._in_step} of step {self._step}"
            self._context.watchdog.beat(activity, allowed_s=self._allowed_s, pending=self._pending)
            self._in_step += phase is not StepPhase.COUNTING
            self._pending += 1
        self._context.enter(WHERE[phase])
        self._range.enter_context(named(range_of(phase)))

    def end_step(self) -> None:
        """Ends a step; the next phase is the first of another step."""
        self._range.close()
        self._step += 1
        self._in_step = 0

    def end(self) -> None:
        """Marks the end of the last step. The device may still be computing; the watchdog waits for it."""
        self._clock.mark()
        self._context.watchdog.beat("the end of a window", allowed_s=self._allowed_s, pending=self._pending)
