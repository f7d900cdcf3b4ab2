"""One rung: warm-up, then timed windows by device events. Nothing is reported inside a window."""

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

import torch

from trainers import engines
from trainers.data import Source, sample_indices
from trainers.engines import Engine
from trainers.failures import RungFailure
from trainers.ladder import HEADROOM, SHORT_ACCUM, largest_accumulation, step_time_s
from trainers.layout import BatchPoint
from trainers.measurement import Measurement, Outcome

if TYPE_CHECKING:
    from trainers.worker import Worker


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Some optimizer steps of one rank, timed. Seconds a step, by part."""

    total_s: float
    steps_s: list[float]
    first_micro_s: float
    """Of the micro-step that begins a step; the last one's where there is no other."""
    middle_micro_s: float
    """Mean of those between the first and the last; the longer of these two where there is none."""
    last_micro_s: float
    optimizer_s: float
    losses: list[float]
    grad_norms: list[float]


class Rung:
    """Measures one batch point on one rank; every rank builds the same measurement."""

    def __init__(self, worker: "Worker", engine: Engine, source: Source, batch: BatchPoint) -> None:
        self._w = worker
        self._engine = engine
        self._source = source
        self._batch = batch
        self._step = 0
        self._peaks = {"forward_backward": 0.0, "optimizer": 0.0, "reserved": 0.0}
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._times_s: list[float] = []
        self._micro_s = 0.0
        """Seconds of the last steps a micro-step, their optimizer steps included."""

    def measure(self, startup_s: float | None) -> Measurement:
        """Warms up, times, gathers over ranks."""
        w, timing = self._w, self._w.job.timing
        accum = min(self._batch.grad_accum, SHORT_ACCUM)
        self._engine.set_grad_accum(accum)
        compile_start = self._run(1, accum, watch_s=w.job.first_step_s, phases=True)
        warm = self._run(max(1, timing.warmup_steps - 1), accum, phases=True)
        warmup_steps = max(2, timing.warmup_steps)
        # After a step, since some of what is in effect (gradient exchange, state types) shows only then.
        if wrong := engines.mismatches(self._engine.in_effect(), w.job.recipe, w.job.layout, grad_accum=accum):
            raise RungFailure(Outcome.FAILED, "; ".join(wrong), phase="init", rank=w.rank)
        if w.job.repeat:
            micro_s = self._slowest(max(warm.middle_micro_s, warm.last_micro_s))
            longer = largest_accumulation(
                self._batch.grad_accum, micro_s, self._slowest(warm.optimizer_s), timing.longest_step_s
            )
            if longer > accum:
                accum = longer
                self._engine.set_grad_accum(accum)
                warm = self._run(1, accum, phases=True)
                warmup_steps += 1
        per_window = max(1, math.ceil(timing.window_s / max(self._slowest(warm.total_s / len(warm.steps_s)), 1e-6)))
        windows, void, retries = self._windows(accum, per_window)
        return self._measurement(
            accum=accum,
            per_window=per_window,
            windows=windows,
            void=void,
            retries=retries,
            warmup_steps=warmup_steps,
            startup_s=startup_s,
            compile_s=max(0.0, compile_start.total_s - warm.total_s / len(warm.steps_s))
            if w.job.layout.compile != "none"
            else None,
        )

    def _windows(self, accum: int, per_window: int) -> tuple[list[Steps], list[str], int]:
        """Timed windows until there are enough; with the reasons of void ones, and allocator retries in all."""
        w, timing = self._w, self._w.job.timing
        windows: list[Steps] = []
        void: list[str] = []
        retries_before, spent_s = w.meter.alloc_retries(), 0.0
        busy: list[float] = []
        while len(windows) < timing.max_windows and len(void) < timing.max_windows:
            skipped = self._engine.num_skipped_steps()
            window = self._run(per_window, accum, busy=busy)
            left_out = self._engine.num_skipped_steps() - skipped
            if left_out:
                void.append(f"{left_out} optimizer steps skipped on fp16 overflow")
            else:
                windows.append(window)
            spent_s += self._slowest(window.total_s)
            if len(windows) >= timing.min_windows and spent_s >= timing.rung_s:
                break
        self._utilization = w.gather(statistics.fmean(busy) if busy else None)
        return windows, void, sum(w.gather(w.meter.alloc_retries() - retries_before))

    def _run(
        self,
        steps: int,
        accum: int,
        *,
        watch_s: float | None = None,
        phases: bool = False,
        busy: list[float] | None = None,
    ) -> Steps:
        """Runs steps between two device events; tokens are on the device before the first.

        `busy` takes the utilization of just these steps: between windows a device waits for its tokens.
        """
        w = self._w
        w.promise(steps * accum * self._micro_s if watch_s is None else watch_s)
        tokens = [self._tokens(self._step + s, k) for s in range(steps) for k in range(accum)]
        losses: list[torch.Tensor] = []
        norms: list[torch.Tensor] = []
        clock = w.clock()
        w.gather(None)  # ranks start a window together, so that none is charged for another's report
        w.meter.reset_peak()
        if busy is not None:
            w.utilization.start()
        clock.mark()
        for s in range(steps):
            w.phase = "forward_backward"
            for k in range(accum):
                w.watchdog.beat(f"micro-step {k} of step {self._step + s}", allowed_s=watch_s, pending=s * accum + k)
                losses.append(self._engine.micro_step(tokens[s * accum + k], last=k == accum - 1))
                clock.mark()
            if phases:
                self._note_peak("forward_backward")
            w.phase = "optimizer"
            norms.append(self._engine.optimizer_step())
            clock.mark()
            if phases:
                self._note_peak("optimizer")
        w.watchdog.beat("the end of a window", allowed_s=watch_s, pending=steps * accum)
        spans = clock.finish()
        if busy is not None and (percent := w.utilization.stop()) is not None:
            busy.append(percent)
        if not phases:
            # A window's peak is not told apart by phase; it can only have been in the one that was the larger before.
            larger = max(("forward_backward", "optimizer"), key=self._peaks.__getitem__)
            self._note_peak(larger, reset=False)
        w.phase = "forward_backward"
        self._step += steps
        return self._timed(spans, losses, norms, accum)

    def _tokens(self, step: int, micro_step: int) -> torch.Tensor:
        w = self._w
        indices = sample_indices(
            self._batch, data_parallel=w.job.layout.data_parallel, rank=w.rank, micro_step=micro_step
        )
        host = torch.from_numpy(self._source.sequences(step, indices))
        return host.pin_memory().to(w.device, non_blocking=True) if w.device.type == "cuda" else host

    def _note_peak(self, phase: str, *, reset: bool = True) -> None:
        meter = self._w.meter
        self._peaks[phase] = max(self._peaks[phase], meter.peak_allocated_gib())
        self._peaks["reserved"] = max(self._peaks["reserved"], meter.peak_reserved_gib())
        if reset:
            meter.reset_peak()

    def _timed(self, spans: list[float], losses: list[Any], norms: list[Any], accum: int) -> Steps:
        size = accum + 1
        steps = [spans[i : i + size] for i in range(0, len(spans), size)]
        mean_losses = [float(sum(losses[i : i + accum])) / accum for i in range(0, len(losses), accum)]
        whole_losses = [statistics.fmean(each) for each in zip(*self._w.gather(mean_losses), strict=True)]
        done = Steps(
            total_s=sum(spans),
            steps_s=[sum(step) for step in steps],
            first_micro_s=statistics.fmean(step[0] for step in steps),
            middle_micro_s=statistics.fmean(statistics.fmean(step[1:-2] or (max(step[:-1]),)) for step in steps),
            last_micro_s=statistics.fmean(step[-2] for step in steps),
            optimizer_s=statistics.fmean(step[-1] for step in steps),
            losses=whole_losses,
            grad_norms=[float(norm) for norm in norms],
        )
        self._w.watchdog.saw(max(done.first_micro_s, done.middle_micro_s, done.last_micro_s))
        self._micro_s = done.total_s / (len(steps) * accum)
        self._losses += done.losses
        self._norms += done.grad_norms
        self._times_s += done.steps_s
        return done

    def _slowest(self, seconds: float) -> float:
        return max(self._w.gather(seconds))

    def _measurement(
        self,
        *,
        accum: int,
        per_window: int,
        windows: list[Steps],
        void: list[str],
        retries: int,
        warmup_steps: int,
        startup_s: float | None,
        compile_s: float | None,
    ) -> Measurement:
        """The rung's figures over all ranks: time of the slowest, memory of the largest."""
        w, job, batch = self._w, self._w.job, self._batch
        memory = w.gather({**self._peaks, "outside": w.meter.outside_gib(), "limit": w.meter.limit_gib()})
        parts = w.gather(
            [
                (x.total_s / per_window, x.first_micro_s, x.middle_micro_s, x.last_micro_s, x.optimizer_s)
                for x in windows
            ]
        )
        slowest = [max(each, key=lambda part: part[0]) for each in zip(*parts, strict=True)]
        if accum == batch.grad_accum:
            full = [total for total, *_ in slowest]
        else:
            full = [step_time_s(batch.grad_accum, *parts) for _, *parts in slowest]
        worst = max(range(w.world), key=lambda rank: max(memory[rank]["forward_backward"], memory[rank]["optimizer"]))
        at = memory[worst]
        busy = [value for value in self._utilization if value is not None]
        outcome, reason = self._judge(full, void, retries, memory)
        spec, recipe = job.recipe.model, job.recipe
        step_s = statistics.median(full) if full else None
        tokens_per_s = recipe.tokens_per_step / step_s if step_s else None
        per_gpu = tokens_per_s / job.layout.world_size if tokens_per_s else None
        model_tflops = per_gpu and per_gpu * spec.flops_per_token(recipe.seq_len) / 1e12
        low_s, high_s = _quartiles(full)
        peak = w.matmul_peak_tflops
        return Measurement(
            recipe=recipe,
            layout=job.layout,
            batch=batch,
            outcome=outcome,
            reason=reason,
            trial_id=job.trial_id,
            repeat=job.repeat,
            measured_grad_accum=accum,
            step_time_s=step_s,
            step_time_low_s=low_s,
            step_time_high_s=high_s,
            step_time_derived=accum != batch.grad_accum,
            windows_s=tuple(total for total, *_ in slowest),
            steps_per_window=per_window,
            void_windows=tuple(void),
            warmup_steps=warmup_steps,
            first_micro_step_s=_median([part[1] for part in slowest]) if accum > 1 else None,
            middle_micro_step_s=_median([part[2] for part in slowest]) if accum > 2 else None,
            last_micro_step_s=_median([part[3] for part in slowest]),
            optimizer_step_s=_median([part[4] for part in slowest]),
            startup_s=startup_s,
            compile_s=compile_s,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=per_gpu,
            model_tflops_per_gpu=model_tflops,
            hardware_tflops_per_gpu=per_gpu
            and per_gpu * spec.hardware_flops_per_token(recipe.seq_len, job.layout.checkpointing) / 1e12,
            matmul_peak_tflops=peak,
            share_of_matmul_peak=model_tflops / peak if model_tflops and peak else None,
            peak_allocated_gib=max(at["forward_backward"], at["optimizer"]),
            peak_reserved_gib=max(each["reserved"] for each in memory),
            peak_device_gib=max(each["reserved"] + each["outside"] for each in memory),
            peak_forward_backward_gib=at["forward_backward"],
            peak_optimizer_gib=at["optimizer"],
            memory_rank=worst,
            alloc_retries=retries,
            cap_gib=job.cap_gib,
            utilization_pct=statistics.fmean(busy) if busy else None,
            idle_devices=sum(value < 5 for value in busy),
            losses=tuple(self._losses),
            grad_norms=tuple(self._norms),
            step_times_s=tuple(self._times_s),
            conditions=w.conditions(),
        )

    def _judge(
        self, full: list[float], void: list[str], retries: int, memory: list[dict[str, float]]
    ) -> tuple[Outcome, str]:
        """The rung's outcome and why. The same on every rank: all it looks at was gathered.

        A gradient norm that is not finite says nothing: an fp16 loss scaler leaves such steps out and goes on.
        """
        if not all(math.isfinite(loss) for loss in self._losses):
            first = next(i for i, loss in enumerate(self._losses) if not math.isfinite(loss))
            return Outcome.DIVERGED, f"the loss was {self._losses[first]} at step {first}"
        if len(full) < (wanted := self._w.job.timing.min_windows):
            windows = f"{len(void)} of {len(void) + len(full)} windows were void"
            return Outcome.FAILED, f"{windows}, and a time takes {wanted}; the last one: {void[-1]}"
        if retries:
            return Outcome.THRASH, f"{retries} allocator retries in the timed windows"
        for rank, each in enumerate(memory):
            share = each["reserved"] / max(each["limit"], 1e-9)
            if each["reserved"] + each["outside"] > HEADROOM * (each["limit"] + each["outside"]):
                return Outcome.THRASH, f"rank {rank} reserved {share:.0%} of its memory: no head-room is left"
        return Outcome.OK, ""


def _quartiles(values: list[float]) -> tuple[float | None, float | None]:
    """First and third quartile, within the values: nothing is drawn on beyond what was measured."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
