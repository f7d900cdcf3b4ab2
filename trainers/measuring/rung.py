"""One rung: warm-up, then timed windows by device events. Nothing is reported inside a window."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainers import engines
from trainers.data import Source, sample_indices
from trainers.engines import Engine
from trainers.engines.step import StepResult
from trainers.failures import RungFailure
from trainers.kernels.compiled import num_compilations
from trainers.kernels.sdpa import kernel_of
from trainers.measuring.context import Context
from trainers.measuring.figures import Shorter, Timed, Window, device_fields, judge, memory_fields, speed_fields
from trainers.measuring.host import HostSampled, host_fields
from trainers.measuring.ladder import (
    SHORT_ACCUM,
    extrapolated,
    largest_accumulation,
    upper_bound_tokens_per_s,
)
from trainers.measuring.marks import StepMarks
from trainers.measuring.sampling import Sampled
from trainers.measuring.steps import Steps, losses_of, timed_steps
from trainers.mesh.stages import timed_accumulations
from trainers.values.batch import BatchPoint
from trainers.values.layout import Layout
from trainers.values.measurement import Measurement, Outcome


def timed_accums(engine: Engine, layout: Layout, batch: BatchPoint) -> tuple[int, ...]:
    """Micro-steps of the steps that stand for a whole one, upwards: of a pipeline two numbers where there is a slope,
    of another schedule that interleaves micro-steps all of them.
    """
    if engine.marks_micro_steps:
        return (min(batch.grad_accum, SHORT_ACCUM),)
    return timed_accumulations(layout, batch.grad_accum)


class Rung:
    """Measures one batch point on one rank; every rank builds the same measurement."""

    def __init__(self, context: Context, engine: Engine, source: Source, batch: BatchPoint) -> None:
        self._c = context
        self._engine = engine
        self._source = source
        self._batch = batch
        self._step = 0
        self._peaks = {"forward_backward": 0.0, "optimizer": 0.0, "reserved": 0.0}
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._times_s: list[float] = []
        self._shorter_peaks: tuple[int, dict[str, float]] | None = None
        """Of a pipeline: micro-steps of the shorter steps, and their peaks."""
        self._micro_s = 0.0
        """Seconds of the last steps a micro-step, their optimizer steps included."""

    def measure(self, started: Mapping[str, float]) -> Measurement:
        """Warms up, times, gathers over ranks. `started` are the measurement's fields on the trial's start."""
        c, timing = self._c, self._c.job.timing
        *shorter, accum = timed_accums(self._engine, c.job.layout, self._batch)
        graphs = num_compilations()
        first = again = self._run(1, (*shorter, accum)[0], watch_s=c.job.first_step_s, phases=True)
        if shorter:
            again = self._run(1, shorter[0], phases=True)
            self._shorter_peaks = (shorter[0], dict(self._peaks))
        warm = self._run(max(1, timing.warmup_steps - 1), accum, phases=True)
        # FlexAttention is compiled whatever the layout says of the blocks.
        compiles = any(c.gather(num_compilations() > graphs)) or c.job.layout.compile != "none"
        compile_s = (
            self._slowest(max(0.0, first.total_s - min((again if shorter else warm).steps_s))) if compiles else None
        )
        warmup_steps = max(2, timing.warmup_steps)
        # After a step, since some of what is in effect (gradient exchange, state types) shows only then.
        if wrong := engines.mismatches(self._engine.in_effect(), c.job.recipe, c.job.layout, grad_accum=accum):
            raise RungFailure(Outcome.FAILED, "; ".join(wrong), phase="init", rank=c.rank)
        longer = accum
        if c.job.is_winner_run and warm.last_micro_s is not None:
            assert warm.middle_micro_s is not None
            micro_s = self._slowest(max(warm.middle_micro_s, warm.last_micro_s))
            longer = largest_accumulation(
                self._batch.grad_accum, micro_s, self._slowest(warm.optimizer_s), timing.longest_step_s
            )
        elif c.job.is_winner_run and shorter:
            fitting = largest_accumulation(
                self._batch.grad_accum,
                self._slowest(warm.schedule_s) / accum,
                self._slowest(warm.optimizer_s),
                timing.longest_step_s,
            )
            # A schedule runs multiples of its shorter accumulation, and the whole one.
            longer = fitting if fitting == self._batch.grad_accum else fitting // shorter[0] * shorter[0]
        if longer > accum:
            accum = longer
            warm = self._run(1, accum, phases=True)
            warmup_steps += 1
        per_window = self._steps_per_window(self._slowest(warm.total_s / len(warm.steps_s)))
        timed = self._windows(accum, per_window, shorter[0] if shorter else None)
        return self._measurement(
            timed,
            accum,
            steps_per_window=per_window,
            warmup_steps=warmup_steps,
            compile_s=compile_s,
            **started,
        )

    def curves(self, learning_rates: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
        """Mean loss over ranks, gradient norm and seconds of an optimizer step at each of the learning rates."""
        accum = self._batch.grad_accum
        for step, rate in enumerate(learning_rates):
            self._engine.set_learning_rate(rate)
            self._run(1, accum, watch_s=None if step else self._c.job.first_step_s)
        return self._losses, self._norms, self._times_s

    def window(self, steps: int) -> None:
        """Runs `steps` optimizer steps in a row, as a timed window does."""
        self._run(steps, self._batch.grad_accum)

    def _steps_per_window(self, step_s: float) -> int:
        timing = self._c.job.timing
        # A winner's last run is longer, not cut into more windows.
        window_s = max(timing.window_s, timing.winner_s / timing.max_windows if self._c.job.is_winner_run else 0.0)
        fitting = max(1, math.ceil(window_s / max(step_s, 1e-6)))
        return fitting if timing.steps is None else min(fitting, max(1, timing.steps // timing.min_windows))

    def _windows(self, accum: int, per_window: int, shorter: int | None = None) -> Timed:
        """Timed windows until there are enough, or until it is clear that the rung cannot reach the incumbent."""
        c, timing = self._c, self._c.job.timing
        windows: list[Window] = []
        void: list[str] = []
        slow, spent_s = "", 0.0
        retries_before = c.meter.alloc_retries()
        while not self._enough(len(windows), spent_s, per_window) and len(void) < timing.max_windows:
            if slow := self._beaten(windows, accum):
                break
            skipped, graphs = self._engine.num_skipped_steps(), num_compilations()
            beside = None if shorter is None else self._beside(shorter, per_window)
            done = self._run(per_window, accum, sampled=(sampled := []))
            left_out = self._engine.num_skipped_steps() - skipped
            parts = (done.total_s / per_window, done.first_micro_s, done.middle_micro_s, done.last_micro_s)
            ranks = c.gather((*parts, done.optimizer_s, done.schedule_s, *sampled))
            slowest = max(ranks, key=lambda rank: rank[0])
            if any(c.gather(num_compilations() - graphs)):
                void.append("a shape was compiled anew")
            elif left_out:
                void.append(f"{left_out} optimizer steps skipped on fp16 overflow")
            else:
                windows.append(
                    Window(
                        total_s=slowest[0],
                        first_micro_s=slowest[1],
                        middle_micro_s=slowest[2],
                        last_micro_s=slowest[3],
                        optimizer_s=slowest[4],
                        schedule_s=slowest[5],
                        shorter=beside,
                        sampled=tuple(rank[6] for rank in ranks),
                        hosts=tuple(rank[7] for rank in ranks),
                    )
                )
            spent_s += (slowest[0] + (beside.total_s if beside else 0.0)) * per_window
        retries = sum(c.gather(c.meter.alloc_retries() - retries_before))
        return Timed(windows=windows, void=void, retries=retries, slow=slow)

    def _beside(self, accum: int, steps: int) -> Shorter:
        """Times `steps` of fewer micro-steps."""
        done = self._run(steps, accum)
        total_s, schedule_s = max(self._c.gather((done.total_s / steps, done.schedule_s)))
        return Shorter(accum=accum, total_s=total_s, schedule_s=schedule_s)

    def _whole_peaks(self, accum: int) -> dict[str, float]:
        """Peaks of memory at the batch point's own accumulation, of which a pipeline's were seen at two others."""
        if self._shorter_peaks is None or accum == self._batch.grad_accum:
            return self._peaks
        shorter, peaks = self._shorter_peaks
        return {
            phase: extrapolated((shorter, peaks[phase]), (accum, peak), self._batch.grad_accum)
            for phase, peak in self._peaks.items()
        }

    def _enough(self, windows: int, spent_s: float, per_window: int) -> bool:
        timing, is_winner_run = self._c.job.timing, self._c.job.is_winner_run
        if windows < timing.min_windows:
            return False
        if is_winner_run:
            return spent_s >= timing.winner_s
        if timing.steps is not None:
            return windows * per_window >= timing.steps
        return windows >= timing.max_windows or spent_s >= timing.rung_s

    def _beaten(self, windows: list[Window], accum: int) -> str:
        """Why further windows are of no use, "" where they may be: the upper bound is below the incumbent."""
        best = self._c.job.incumbent_tokens_per_s
        if best is None or len(windows) < max(3, self._c.job.timing.min_windows):
            return ""
        full_s = [window.full_s(self._batch, accum) for window in windows]
        tokens = self._batch.global_batch(self._c.job.layout) * self._c.job.recipe.seq_len
        bound = upper_bound_tokens_per_s(tokens, full_s)
        if bound >= best:
            return ""
        return f"stopped after {len(windows)} windows: {bound:,.0f} tokens/s at most, the best so far has {best:,.0f}"

    def _run(
        self,
        steps: int,
        accum: int,
        *,
        watch_s: float | None = None,
        phases: bool = False,
        sampled: list[Sampled | HostSampled | None] | None = None,
    ) -> Steps:
        """Runs steps between two device events; tokens are on the device before the first.

        `sampled` takes the state of the device and of its node in just these steps: between windows a device waits for
        its tokens.
        """
        c = self._c
        allowed_s = watch_s
        if not self._engine.marks_micro_steps:  # the one mark of a schedule stands for all of its micro-steps
            allowed_s = max(c.watchdog.allowance_s, 10 * accum * self._micro_s) if watch_s is None else accum * watch_s
        c.promise(steps * accum * self._micro_s if watch_s is None else watch_s)
        batches = [[self._tokens(self._step + s, k) for k in range(accum)] for s in range(steps)]
        results: list[StepResult] = []
        clock = c.clock()
        c.gather(None)  # ranks start a window together, so that none is charged for another's report
        if phases:
            c.meter.reset_peak()
        if sampled is not None:
            c.sampler.start()
            c.host.start()
        marks = StepMarks(
            c,
            clock,
            first_step=self._step,
            allowed_s=allowed_s,
            on_optimizer=(lambda: self._note_peak("forward_backward")) if phases else None,
        )
        for number, batch in enumerate(batches, start=1):
            results.append(self._engine.step(batch, marks))
            marks.end_step()
            if phases:
                # On a CPU counting goes on until the peak is read: a timed window is free of it.
                self._note_peak("optimizer", reset=number < steps)
        marks.end()
        spans = clock.finish()
        if sampled is not None:
            sampled += [c.sampler.stop(), c.host.stop()]
        if not phases:
            # A window's peak is not told apart by phase; it can only have been in the one that was the larger before.
            larger = max(("forward_backward", "optimizer"), key=self._peaks.__getitem__)
            self._note_peak(larger, reset=False)
        c.enter("forward_backward")
        self._step += steps
        done = timed_steps(spans, [result.phases for result in results])
        c.watchdog.saw(done.longest_beat_s)
        self._micro_s = done.total_s / (steps * accum)
        self._losses += losses_of(results, c.gather)
        self._norms += [float(result.grad_norm) for result in results]
        self._times_s += done.steps_s
        return done

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

    def _note_peak(self, phase: str, *, reset: bool = True) -> None:
        meter = self._c.meter
        self._peaks[phase] = max(self._peaks[phase], meter.peak_allocated_gib())
        self._peaks["reserved"] = max(self._peaks["reserved"], meter.peak_reserved_gib())
        meter.enforce_cap()
        if reset:
            meter.reset_peak()

    def _slowest(self, seconds: float) -> float:
        return max(self._c.gather(seconds))

    def _measurement(self, timed: Timed, accum: int, **how: Any) -> Measurement:
        """The rung's figures over all ranks: time of the slowest, memory of the largest. `how` are further fields."""
        c, job, batch = self._c, self._c.job, self._batch
        memory = c.gather({**self._whole_peaks(accum), "outside": c.meter.outside_gib(), "limit": c.meter.limit_gib()})
        outcome, reason = judge(timed, self._losses, memory, job.timing.min_windows)
        return job.measurement(
            batch,
            outcome,
            reason=reason,
            void_windows=tuple(timed.void),
            alloc_retries=timed.retries,
            losses=tuple(self._losses),
            grad_norms=tuple(self._norms),
            step_times_s=tuple(self._times_s),
            conditions=c.conditions(),
            sdpa_kernel=kernel_of(job.recipe, job.layout, c.device),
            **speed_fields(job, batch, timed.windows, accum, c.matmul_peak_tflops),
            **memory_fields(memory),
            **device_fields(timed.windows),
            **host_fields([window.hosts for window in timed.windows]),
            **how,
        )
