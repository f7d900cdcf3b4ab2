"""The arithmetic of a rung that needs no process group: which phase a peak belongs to."""

from types import SimpleNamespace
from typing import Any, cast

from trainers.layout import BatchPoint
from trainers.rung import Rung


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


def test_utilization_is_that_of_the_timed_steps_alone(monkeypatch: Any) -> None:
    made = rung(monkeypatch)
    told: list[str] = []
    made._w.utilization = SimpleNamespace(start=lambda: told.append("start"), stop=lambda: told.append("stop") or 50.0)
    monkeypatch.setattr(made, "_tokens", lambda step, micro_step: told.append("tokens"))
    busy: list[float] = []
    made._run(1, 1, busy=busy)
    made._run(1, 1, busy=busy)
    assert told == ["tokens", "start", "stop"] * 2 and busy == [50.0, 50.0]
