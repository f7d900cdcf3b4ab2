"""Measures one batch point (a rung of the ladder): warm-up, then windows timed by device events. Nothing is reported
inside a window.
"""

import math
from collections.abc import Mapping
from typing import Any

from trainers.engines.stepper import HasModels, HasSettings, Stepper, marks_micro_steps, skipped_steps
from trainers.host.failures import RungFailure
from trainers.kernels.compiled import num_compilations
from trainers.kernels.sdpa import kernel_of
from trainers.measuring.device import peak_resident_gib
from trainers.measuring.figures import Shorter, Timed, TimedWindow, device_fields, judge, memory_fields, speed_fields
from trainers.measuring.host_load import host_fields
from trainers.measuring.ladder import (
    extrapolated,
    largest_accumulation,
    timed_accum,
    upper_bound_tokens_per_s,
)
from trainers.measuring.runner import StepRunner
from trainers.measuring.timed_steps import TimedSteps
from trainers.records.measurement import Measurement, Outcome
from trainers.spec import engines
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.stages import timed_accumulations


def timed_accums(
    engine: Stepper, layout: Layout, batch: BatchPoint, *, all_micro_steps: bool = False
) -> tuple[int, ...]:
    """Returns the accumulation counts to time, ascending; the full step is extrapolated from them. A pipeline needs
    two, for the slope; other interleaving schedules are timed at full accumulation. With `all_micro_steps` the last
    count is the full one.
    """
    if marks_micro_steps(engine):
        return (timed_accum(batch.grad_accum, all_micro_steps=all_micro_steps),)
    *shorter, accum = timed_accumulations(layout, batch.grad_accum)
    return (*shorter, batch.grad_accum if all_micro_steps else accum)


class Rung(StepRunner):
    """Measures one batch point on one rank; every rank computes the same measurement."""

    _shorter_peaks: tuple[int, dict[str, float]] | None = None
    """Number of micro-steps in a pipeline's shorter steps, and their memory peaks."""

    def measure(self, started: Mapping[str, float]) -> Measurement:
        """Warms up, times windows, gathers over ranks and returns the measurement. `started` are its fields on the
        trial's start.
        """
        c, timing = self._c, self._c.job.timing
        *shorter, accum = timed_accums(self._engine, c.job.layout, self._batch, all_micro_steps=timing.whole_steps)
        # The first step is a short one: the driver waits a fixed time for it, since the time of a micro-step is
        # unknown.
        begins = timed_accums(self._engine, c.job.layout, self._batch)[0]
        graphs = num_compilations()
        first = repeated = self._run(1, begins, watch_s=c.job.first_step_s, phases=True)
        if begins < accum:
            repeated = self._run(1, begins, phases=True)
        if shorter:
            self._shorter_peaks = (shorter[0], dict(self._peaks))
        warm = self._run(max(1, timing.warmup_steps - 1), accum, phases=True)
        # FlexAttention is compiled even if the layout compiles no blocks.
        compiles = any(c.gather(num_compilations() > graphs)) or c.job.layout.compile != "none"
        again = repeated if begins < accum else warm
        compile_s = self._slowest(max(0.0, first.total_s - min(again.steps_s))) if compiles else None
        # Checked after a step, because some settings (gradient exchange, state types) are only then in effect.
        if isinstance(self._engine, HasSettings):
            in_effect = self._engine.in_effect()
            if wrong := engines.mismatches(in_effect, c.job.recipe, c.job.layout, grad_accum=accum):
                raise RungFailure(Outcome.FAILED, "; ".join(wrong), phase="init", rank=c.rank)
        longer = self._longest(warm, accum, shorter[0] if shorter else None) if c.job.is_winner_run else accum
        if longer > accum:
            accum = longer
            warm = self._run(1, accum, phases=True)
        warmup_steps = self._step
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

    def _longest(self, warm: TimedSteps, accum: int, shorter: int | None) -> int:
        """Returns the largest number of micro-steps for the winner's timed steps, from the `warm` steps of `accum`
        micro-steps.
        """
        grad_accum, longest_s = self._batch.grad_accum, self._c.job.timing.longest_step_s
        if warm.last_micro_s is not None:
            assert warm.middle_micro_s is not None
            micro_s = self._slowest(max(warm.middle_micro_s, warm.last_micro_s))
            return largest_accumulation(grad_accum, micro_s, self._slowest(warm.optimizer_s), longest_s)
        if shorter is None:
            return accum
        micro_s = self._slowest(warm.schedule_s) / accum
        fitting = largest_accumulation(grad_accum, micro_s, self._slowest(warm.optimizer_s), longest_s)
        # A schedule runs multiples of its shorter accumulation, or the full one.
        return fitting if fitting == grad_accum else fitting // shorter * shorter

    def _steps_per_window(self, step_s: float) -> int:
        timing = self._c.job.timing
        # A winner's run has longer windows instead of more.
        window_s = max(timing.window_s, timing.winner_s / timing.max_windows if self._c.job.is_winner_run else 0.0)
        fitting = max(1, math.ceil(window_s / max(step_s, 1e-6)))
        return fitting if timing.steps is None else min(fitting, max(1, timing.steps // timing.min_windows))

    def _windows(self, accum: int, per_window: int, shorter: int | None = None) -> Timed:
        """Times windows until there are enough, or until the batch point clearly cannot reach the incumbent."""
        c, timing = self._c, self._c.job.timing
        windows: list[TimedWindow] = []
        void: list[str] = []
        slow, spent_s = "", 0.0
        retries_before = c.meter.alloc_retries()
        while not self._enough(len(windows), spent_s, per_window) and len(void) < timing.max_windows:
            if slow := self._beaten(windows, accum):
                break
            skipped, graphs = skipped_steps(self._engine), num_compilations()
            shorter_steps = None if shorter is None else self._shorter(shorter, per_window)
            window = self._run(per_window, accum, sampled=(sampled := []))
            left_out = skipped_steps(self._engine) - skipped
            parts = (window.total_s / per_window, window.first_micro_s, window.middle_micro_s, window.last_micro_s)
            ranks = c.gather((*parts, window.optimizer_s, window.schedule_s, *sampled))
            slowest = max(ranks, key=lambda rank: rank[0])
            if any(c.gather(num_compilations() - graphs)):
                void.append("a shape was compiled anew")
            elif left_out:
                void.append(f"{left_out} optimizer steps skipped on fp16 overflow")
            else:
                windows.append(
                    TimedWindow(
                        total_s=slowest[0],
                        first_micro_s=slowest[1],
                        middle_micro_s=slowest[2],
                        last_micro_s=slowest[3],
                        optimizer_s=slowest[4],
                        schedule_s=slowest[5],
                        shorter=shorter_steps,
                        sampled=tuple(rank[6] for rank in ranks),
                        hosts=tuple(rank[7] for rank in ranks),
                    )
                )
            spent_s += (slowest[0] + (shorter_steps.total_s if shorter_steps else 0.0)) * per_window
        retries = sum(c.gather(c.meter.alloc_retries() - retries_before))
        return Timed(windows=windows, void=void, retries=retries, slow=slow)

    def _shorter(self, accum: int, steps: int) -> Shorter:
        """Times `steps` steps of `accum` micro-steps, fewer than in the window."""
        window = self._run(steps, accum)
        total_s, schedule_s = max(self._c.gather((window.total_s / steps, window.schedule_s)))
        return Shorter(accum=accum, total_s=total_s, schedule_s=schedule_s)

    def _whole_peaks(self, accum: int) -> dict[str, float]:
        """Returns the memory peaks at the batch point's accumulation, extrapolated if a pipeline was measured at two
        others.
        """
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

    def _beaten(self, windows: list[TimedWindow], accum: int) -> str:
        """Returns the reason to stop timing if the upper bound of tokens/s is below the incumbent, else ""."""
        best = self._c.job.incumbent_tokens_per_s
        if best is None or len(windows) < max(3, self._c.job.timing.min_windows):
            return ""
        full_s = [window.full_s(self._batch, accum) for window in windows]
        tokens = self._batch.global_batch(self._c.job.layout) * self._c.job.recipe.seq_len
        bound = upper_bound_tokens_per_s(tokens, full_s)
        if bound >= best:
            return ""
        has = "would have" if self._c.job.incumbent_derived else "has"
        return f"stopped after {len(windows)} windows: {bound:,.0f} tokens/s at most, the best so far {has} {best:,.0f}"

    def _slowest(self, seconds: float) -> float:
        return max(self._c.gather(seconds))

    def _measurement(self, timed: Timed, accum: int, **fields: Any) -> Measurement:
        """Returns the batch point's measurement over all ranks: times of the slowest, memory of the largest. `fields`
        are added.
        """
        c, job, batch = self._c, self._c.job, self._batch
        of_rank = {"outside": c.meter.outside_gib(), "limit": c.meter.limit_gib(), "host": peak_resident_gib()}
        memory = c.gather({**self._whole_peaks(accum), **of_rank})
        outcome, reason = judge(timed, self._losses, memory, job.timing.min_windows)
        is_recipe_s = isinstance(self._engine, HasModels)
        return job.measurement(
            batch,
            outcome,
            reason=reason,
            void_windows=tuple(timed.void),
            alloc_retries=timed.retries,
            losses=tuple(self._losses),
            grad_norms=() if all(map(math.isnan, self._norms)) else tuple(self._norms),
            step_times_s=tuple(self._times_s),
            conditions=c.conditions(),
            sdpa_kernel=kernel_of(job.recipe, job.layout, c.device) if is_recipe_s else "",
            **speed_fields(job, batch, timed.windows, accum, c.matmul_peak_tflops, counts_flops=is_recipe_s),
            **memory_fields(memory),
            **device_fields(timed.windows),
            **host_fields([window.hosts for window in timed.windows]),
            **fields,
        )
