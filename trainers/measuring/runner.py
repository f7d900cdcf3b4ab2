"""Runs optimizer steps of one batch point between two device events, and records losses, norms and memory."""

from collections.abc import Sequence

import torch

from trainers.data import Source, sample_indices
from trainers.engines.stepper import ReplaysGraphs, Stepper, marks_micro_steps
from trainers.marks.step import StepResult
from trainers.measuring.device import AllocatorPeak
from trainers.measuring.host_load import HostSampled
from trainers.measuring.run_context import RunContext
from trainers.measuring.sampling import Sampled
from trainers.measuring.step_marks import StepMarks
from trainers.measuring.timed_steps import TimedSteps, losses_of, timed_steps
from trainers.spec.batch import BatchPoint

_PHASES = ("forward_backward", "optimizer")
"""Phases with separate memory peaks, in order."""


class StepRunner:
    """Runs steps of one batch point on one rank in sequence, and records losses, norms and memory peaks."""

    def __init__(self, context: RunContext, engine: Stepper, source: Source, batch: BatchPoint) -> None:
        self._c = context
        self._engine = engine
        if isinstance(engine, ReplaysGraphs):  # the numerics gate may have captured steps of this shape
            engine.forget_graphs()
        self._source = source
        self._batch = batch
        self._step = 0
        self._peaks: dict[str, float] = dict.fromkeys((*_PHASES, "reserved"), 0.0)
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._times_s: list[float] = []
        self._micro_s = 0.0
        """Seconds per micro-step of the last steps, including their optimizer steps."""

    def warm_up(self, steps: int) -> None:
        """Runs `steps` optimizer steps, one at a time."""
        for step in range(steps):
            self._run(1, self._batch.grad_accum, watch_s=None if step else self._c.job.first_step_s)

    def numbered(self, number: int) -> tuple[float, float, float]:
        """Runs the optimizer step on batch `number`; returns its mean loss over ranks, its gradient norm and its
        seconds.
        """
        self._step = number
        self._run(1, self._batch.grad_accum, watch_s=None if number else self._c.job.first_step_s)
        return self._losses[-1], self._norms[-1], self._times_s[-1]

    def window(self, steps: int) -> None:
        self._run(steps, self._batch.grad_accum)

    def _run(
        self,
        steps: int,
        accum: int,
        *,
        watch_s: float | None = None,
        phases: bool = False,
        sampled: list[Sampled | HostSampled | None] | None = None,
    ) -> TimedSteps:
        """Runs steps between two device events; all tokens are on the device before the first event.

        `watch_s` is the time allowed for a micro-step if none was timed before. With `phases` memory peaks are taken
        per phase. `sampled` receives the state of the device and its node during exactly these steps, because between
        windows a device waits for tokens.
        """
        c = self._c
        c.promise(steps * accum * self._micro_s if watch_s is None else watch_s)
        batches = [[self._tokens(self._step + s, k) for k in range(accum)] for s in range(steps)]
        clock = c.clock()
        c.gather(None)  # ranks start together, so that no window includes another rank's report
        if phases:
            c.meter.reset_peak()
        if sampled is not None:
            c.sampler.start()
            c.host.start()
        allowed_s = self._allowed_s(accum, watch_s)
        on_optimizer = c.meter.begin_part if phases else None
        marks = StepMarks(c, clock, first_step=self._step, allowed_s=allowed_s, on_optimizer=on_optimizer)
        results = self._step_through(batches, marks, phases=phases)
        spans = clock.finish()
        if sampled is not None:
            sampled += [c.sampler.stop(), c.host.stop()]
        if not phases:
            # A window's peak is not split by phase; it belongs to the phase with the larger peak so far.
            larger = max(_PHASES, key=self._peaks.__getitem__)
            for peak in c.meter.peaks():
                self._note_peak(larger, peak)
        c.enter("forward_backward")
        return self._recorded(results, spans, accum)

    def _allowed_s(self, accum: int, watch_s: float | None) -> float | None:
        """Returns the seconds that the watchdog waits for a mark; None lets it derive them from earlier marks."""
        if marks_micro_steps(self._engine):
            return watch_s
        # A schedule has one mark for all of its micro-steps.
        return max(self._c.watchdog.allowance_s, 10 * accum * self._micro_s) if watch_s is None else accum * watch_s

    def _step_through(
        self, batches: Sequence[Sequence[torch.Tensor]], marks: StepMarks, *, phases: bool
    ) -> list[StepResult]:
        """Runs one step for each of `batches` and returns their results."""
        results: list[StepResult] = []
        for number, batch in enumerate(batches, start=1):
            results.append(self._engine.step(batch, marks))
            marks.end_step()
            if phases:
                # On a CPU counting continues until peaks are read; timed windows must be free of its cost.
                self._note_parts()
                if number < len(batches):
                    self._c.meter.reset_peak()
        marks.end()
        return results

    def _recorded(self, results: Sequence[StepResult], spans: Sequence[float], accum: int) -> TimedSteps:
        """Appends the losses and norms of finished steps with `accum` micro-steps, and returns their times."""
        timed = timed_steps(spans, [result.phases for result in results])
        self._c.watchdog.saw(timed.longest_beat_s)
        self._step += len(results)
        self._micro_s = timed.total_s / (len(results) * accum)
        self._losses += losses_of(results, self._c.gather)
        self._norms += [float(result.grad_norm) for result in results]
        self._times_s += timed.steps_s
        return timed

    def _tokens(self, step: int, micro_step: int) -> torch.Tensor:
        c = self._c
        indices = sample_indices(
            self._batch,
            data_parallel=c.job.layout.data_parallel,
            rank=c.job.layout.data_parallel_rank(c.rank),
            micro_step=micro_step,
        )
        host = torch.from_numpy(self._source.sequences(step, indices))
        return host.pin_memory().to(c.device, non_blocking=True) if c.device.type == "cuda" else host

    def _note_parts(self) -> None:
        """Records the memory peaks of a step's two phases.

        Raises:
            torch.OutOfMemoryError: a peak exceeded a CPU worker's cap.
        """
        for part, (phase, peak) in enumerate(zip(_PHASES, self._c.meter.peaks(), strict=True)):
            self._c.enter(phase)
            self._note_peak(phase, peak)
            self._c.meter.enforce_cap(part)

    def _note_peak(self, phase: str, peak: AllocatorPeak) -> None:
        self._peaks[phase] = max(self._peaks[phase], peak.allocated_gib)
        self._peaks["reserved"] = max(self._peaks["reserved"], peak.reserved_gib)
