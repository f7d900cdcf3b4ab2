# pyright: reportPrivateUsage=false
"""The arithmetic of a rung that needs no process group: which phase a peak belongs to, which windows count."""

import itertools
import math
import statistics
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainers.job import Timing
from trainers.layout import BatchPoint
from trainers.measurement import Outcome
from trainers.rung import Rung, _quartiles


class Clock:
    """Marks at equal distances."""

    def __init__(self, each_s: float = 0.1) -> None:
        self.marks, self.each_s = 0, each_s

    def mark(self) -> None:
        self.marks += 1

    def finish(self) -> list[float]:
        return [self.each_s] * (self.marks - 1)


class Meter:
    """Memory by hand: forward and backward take 1 GiB, the optimizer step takes 5."""

    def __init__(self) -> None:
        self.peak = 0.0

    def reset_peak(self) -> None:
        self.peak = 0.0

    def peak_allocated_gib(self) -> float:
        return self.peak

    def peak_reserved_gib(self) -> float:
        return self.peak


class Engine:
    """Touches the meter as an engine would."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def micro_step(self, tokens: object, *, last: bool) -> float:
        self.meter.peak = max(self.meter.peak, 1.0)
        return 1.0

    def optimizer_step(self) -> float:
        self.meter.peak = max(self.meter.peak, 5.0)
        return 1.0


def rung(monkeypatch: Any) -> Any:
    meter = Meter()
    dog = SimpleNamespace(beat=lambda *_, **__: None, saw=lambda _: None)
    worker = SimpleNamespace(
        meter=meter, clock=Clock, watchdog=dog, gather=lambda value: [value], phase="", promise=lambda _: None
    )
    made: Any = Rung(
        cast(Any, worker), cast(Any, Engine(meter)), cast(Any, None), BatchPoint(micro_batch=1, grad_accum=2)
    )
    monkeypatch.setattr(made, "_tokens", lambda step, micro_step: None)
    return made


def test_a_window_s_peak_is_not_put_down_to_the_wrong_phase(monkeypatch: Any) -> None:
    made = rung(monkeypatch)
    made._run(1, 2, phases=True)
    assert (made._peaks["forward_backward"], made._peaks["optimizer"]) == (1.0, 5.0)
    made._run(3, 2)  # no utilization is asked for outside the timed windows
    assert (made._peaks["forward_backward"], made._peaks["optimizer"]) == (1.0, 5.0)


def test_slow_micro_steps_put_off_the_trial_s_deadline(monkeypatch: Any) -> None:
    """At 300 s a micro-step a rung takes an hour, and each part of it must be allowed for before it begins."""
    made = rung(monkeypatch)
    promised: list[float] = []
    made._w.promise = promised.append
    made._w.clock = lambda: Clock(300.0)
    made._run(1, 2, watch_s=300.0, phases=True)  # nothing is known of the first step
    for steps in (1, 1, 3):
        made._run(steps, 2)
    assert promised == [300.0, 900.0, 900.0, 2700.0]  # two micro-steps and an optimizer step take 900 s


def windows_of(monkeypatch: Any, overflows: list[int]) -> tuple[Any, list[str], Outcome, str]:
    """Good and void windows of a rung whose n-th window left out so many optimizer steps, and what is made of it."""
    made = rung(monkeypatch)
    made._w.job = SimpleNamespace(timing=Timing(rung_s=0.0))
    made._w.meter.alloc_retries = lambda: 0
    made._w.utilization = SimpleNamespace(start=lambda: None, stop=lambda: None)
    totals = [0, *itertools.accumulate(overflows)]
    told = iter([total for total in totals for _ in range(2)][1:])  # before and after each window
    made._engine.num_skipped_steps = lambda: next(told)
    windows, void, retries = made._windows(1, 1)
    memory = [{"reserved": 1.0, "outside": 0.0, "limit": 4.0}]
    return windows, void, *made._judge([window.total_s for window in windows], void, retries, memory)


def test_a_rung_of_void_windows_is_no_result(monkeypatch: Any) -> None:
    windows, void, outcome, reason = windows_of(monkeypatch, [1, 1, 0, 1, 1, 0, 1, 1, 1, 2])
    assert (len(windows), len(void), outcome) == (2, 8, Outcome.FAILED)
    assert reason == (
        "8 of 10 windows were void, and a time takes 3; the last one: 2 optimizer steps skipped on fp16 overflow"
    )


def test_void_windows_beside_enough_good_ones_are_left_out(monkeypatch: Any) -> None:
    windows, void, outcome, reason = windows_of(monkeypatch, [1, 0, 0, 1, 0, 0])
    assert (len(windows), len(void), outcome, reason) == (3, 2, Outcome.OK, "")


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_gradient_norm_of_a_step_left_out_is_no_divergence(monkeypatch: Any, norm: float) -> None:
    made = rung(monkeypatch)
    made._engine.optimizer_step = lambda: norm
    made._w.job = SimpleNamespace(timing=Timing())
    made._run(1, 1, phases=True)
    memory = [{"reserved": 1.0, "outside": 0.0, "limit": 4.0}]
    assert made._judge([0.2] * 3, ["overflow"], 0, memory) == (Outcome.OK, "")
    assert not math.isfinite(made._norms[0])
    made._losses.append(norm)
    assert made._judge([0.2] * 3, ["overflow"], 0, memory)[0] is Outcome.DIVERGED


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 9.0], [4.0, 1.0, 1.0, 1.0]])
def test_quartiles_lie_within_what_was_measured(values: list[float]) -> None:
    low, high = _quartiles(values)
    assert low is not None and high is not None
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)
    assert _quartiles(values[:1]) == (values[0], values[0]) and _quartiles([]) == (None, None)


def test_utilization_is_that_of_the_timed_steps_alone(monkeypatch: Any) -> None:
    made = rung(monkeypatch)
    told: list[str] = []
    made._w.utilization = SimpleNamespace(start=lambda: told.append("start"), stop=lambda: told.append("stop") or 50.0)
    monkeypatch.setattr(made, "_tokens", lambda step, micro_step: told.append("tokens"))
    busy: list[float] = []
    made._run(1, 1, busy=busy)
    made._run(1, 1, busy=busy)
    assert told == ["tokens", "start", "stop"] * 2 and busy == [50.0, 50.0]
