"""Rungs on made-up engines, clocks and meters."""

# pyright: reportPrivateUsage=false
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from trainers.marks.step import Marks, StepPhase, StepResult
from trainers.measuring.device import AllocatorPeak
from trainers.measuring.figures import TimedWindow, judge
from trainers.measuring.rung import Rung
from trainers.measuring.sampling import Sampled
from trainers.records.job import Timing
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint

MEMORY = [{"reserved": 1.0, "outside": 0.0, "limit": 4.0, "host": 2.0}]


class Clock:
    """A clock whose marks are at equal distances."""

    def __init__(self, each_s: float = 0.1) -> None:
        self.marks, self.each_s = 0, each_s

    def mark(self) -> None:
        self.marks += 1

    def finish(self) -> list[float]:
        return [self.each_s] * (self.marks - 1)


class Meter:
    """A meter whose peak is set by hand: forward and backward take 1 GiB, the optimizer step takes 5."""

    def __init__(self) -> None:
        self.parts = [0.0]

    def reset_peak(self) -> None:
        self.parts = [0.0]

    def begin_part(self) -> None:
        self.parts.append(0.0)

    def peaks(self) -> list[AllocatorPeak]:
        return [AllocatorPeak(allocated_gib=peak, reserved_gib=peak) for peak in self.parts]

    def hold(self, gib: float) -> None:
        self.parts[-1] = max(self.parts[-1], gib)

    def enforce_cap(self, part: int) -> None:
        return


class Engine:
    """An engine that sets the meter's peak as a real one would raise it."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    marks_micro_steps = True

    def step(self, micro_batches: Sequence[Any], marks: Marks) -> StepResult:
        for _ in micro_batches:
            marks.begin(StepPhase.MICRO_STEP)
            self.meter.hold(1.0)
        marks.begin(StepPhase.OPTIMIZER_STEP)
        self.meter.hold(5.0)
        return result(len(micro_batches))


class Scheduled(Engine):
    """An engine that interleaves its micro-steps."""

    marks_micro_steps = False

    def step(self, micro_batches: Sequence[Any], marks: Marks) -> StepResult:
        marks.begin(StepPhase.SCHEDULE)
        marks.begin(StepPhase.OPTIMIZER_STEP)
        return result(0)


def result(num_micro_steps: int, *, loss: float = 1.0, num_tokens: int = 1, norm: float = 1.0) -> StepResult:
    """Returns a made-up result of a step; without micro-steps it is that of a schedule."""
    return StepResult(
        loss_sum=torch.tensor(loss * num_tokens),
        num_tokens=torch.tensor(num_tokens),
        grad_norm=torch.tensor(norm),
        phases=(*([StepPhase.MICRO_STEP] * num_micro_steps or [StepPhase.SCHEDULE]), StepPhase.OPTIMIZER_STEP),
    )


def rung(monkeypatch: Any, kind: type[Engine] = Engine, grad_accum: int = 2) -> Any:
    meter = Meter()
    dog = SimpleNamespace(beat=lambda *_, **__: None, saw=lambda _: None, allowance_s=60.0)
    context = SimpleNamespace(
        meter=meter,
        clock=Clock,
        watchdog=dog,
        gather=lambda value: [value],
        enter=lambda _: None,
        promise=lambda _: None,
    )
    measured_rung: Any = Rung(
        cast(Any, context), cast(Any, kind(meter)), cast(Any, None), BatchPoint(micro_batch=1, grad_accum=grad_accum)
    )
    monkeypatch.setattr(measured_rung, "_tokens", lambda step, micro_step: None)
    return measured_rung


def window(total_s: float, *sampled: Sampled | None) -> TimedWindow:
    """Returns a window of one step in equal parts."""
    part = total_s / 4
    return TimedWindow(
        total_s=total_s,
        first_micro_s=part,
        middle_micro_s=part,
        last_micro_s=part,
        optimizer_s=part,
        sampled=sampled,
    )


def job(timing: Timing, **fields: Any) -> Any:
    """Returns the fields that a rung reads of its job."""
    defaults = {"is_winner_run": False, "incumbent_tokens_per_s": None, "recipe": SimpleNamespace(seq_len=50)}
    defaults |= {"incumbent_derived": False, "layout": SimpleNamespace(data_parallel=1)}
    return SimpleNamespace(timing=timing, **{**defaults, **fields})


def timed(monkeypatch: Any, measured_rung: Any, overflows: list[int] | None = None) -> Any:
    """Times a rung whose n-th window skips `overflows[n]` optimizer steps; where that is None, no window skips any."""
    measured_rung._c.meter.alloc_retries = lambda: 0
    measured_rung._c.sampler = measured_rung._c.host = SimpleNamespace(start=lambda: None, stop=lambda: None)
    if overflows is None:
        measured_rung._engine.num_skipped_steps = lambda: 0
        return measured_rung._windows(2, 1)
    totals = [0, *itertools.accumulate(overflows)]
    skipped_counts = iter([total for total in totals for _ in range(2)][1:])  # before and after each window
    measured_rung._engine.num_skipped_steps = lambda: next(skipped_counts)
    return measured_rung._windows(1, 1)


def judged(monkeypatch: Any, overflows: list[int]) -> tuple[Any, Any, Outcome, str]:
    """Returns the good and the void windows of a timed rung, its outcome and the reason."""
    measured_rung = rung(monkeypatch)
    measured_rung._c.job = job(Timing(rung_s=0.0))
    windows_timed = timed(monkeypatch, measured_rung, overflows)
    return windows_timed.windows, windows_timed.void, *judge(windows_timed, [1.0], MEMORY, 3)


class Slowing(Clock):
    """A clock whose steps differ a little from window to window: 0.1 s in every third, slightly more in the others."""

    measured_rung = 0

    def __init__(self) -> None:
        type(self).measured_rung += 1
        super().__init__(0.1 + 0.001 * (type(self).measured_rung % 3))
