# pyright: reportPrivateUsage=false
"""The arithmetic of a rung that needs no process group: which phase a peak belongs to, which windows count."""

import dataclasses
import math
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.measuring.rungs import MEMORY, Clock, Slowing, job, judged, rung, timed, window
from trainers.measuring.figures import Timed, judge, quartiles
from trainers.measuring.sampling import Sampled
from trainers.records.job import Timing
from trainers.records.measurement import Outcome


def test_a_window_s_peak_is_not_put_down_to_the_wrong_phase(monkeypatch: Any) -> None:
    measured_rung = rung(monkeypatch)
    measured_rung._run(1, 2, phases=True)
    assert (measured_rung._peaks["forward_backward"], measured_rung._peaks["optimizer"]) == (1.0, 5.0)
    measured_rung._run(3, 2)  # no utilization is asked for outside the timed windows
    assert (measured_rung._peaks["forward_backward"], measured_rung._peaks["optimizer"]) == (1.0, 5.0)


def test_slow_micro_steps_put_off_the_trial_s_deadline(monkeypatch: Any) -> None:
    """Checks deadlines: at 300 s a micro-step a rung takes an hour, and each part is allowed for before it begins."""
    measured_rung = rung(monkeypatch)
    promised: list[float] = []
    measured_rung._c.promise = promised.append
    measured_rung._c.clock = lambda: Clock(300.0)
    measured_rung._run(1, 2, watch_s=300.0, phases=True)  # nothing is known of the first step
    for steps in (1, 1, 3):
        measured_rung._run(steps, 2)
    assert promised == [300.0, 900.0, 900.0, 2700.0]  # two micro-steps and an optimizer step take 900 s


def test_a_gate_s_step_has_its_seconds(monkeypatch: Any) -> None:
    measured_rung = rung(monkeypatch)
    measured_rung._c.job = SimpleNamespace(first_step_s=60.0)
    assert [measured_rung.numbered(number) for number in range(3)] == [(1.0, 1.0, pytest.approx(0.3))] * 3


def test_a_rung_of_void_windows_is_no_result(monkeypatch: Any) -> None:
    windows, void, outcome, reason = judged(monkeypatch, [1, 1, 0, 1, 1, 0, 1, 1, 1, 2])
    assert (len(windows), len(void), outcome) == (2, 8, Outcome.FAILED)
    assert reason == (
        "8 of 10 windows were void, and a time takes 3; the last one: 2 optimizer steps skipped on fp16 overflow"
    )


def test_a_window_in_which_something_was_compiled_is_void(monkeypatch: Any) -> None:
    measured_rung = rung(monkeypatch)
    measured_rung._c.job = job(Timing(rung_s=0.0))
    graphs = iter([4, 4, 4, 5, 5, 5, 5, 5])  # before and after each window
    monkeypatch.setattr("trainers.measuring.rung.num_compilations", lambda: next(graphs))
    windows_timed = timed(monkeypatch, measured_rung)
    assert (len(windows_timed.windows), windows_timed.void) == (3, ["a shape was compiled anew"])


def test_void_windows_beside_enough_good_ones_are_left_out(monkeypatch: Any) -> None:
    windows, void, outcome, reason = judged(monkeypatch, [1, 0, 0, 1, 0, 0])
    assert (len(windows), len(void), outcome, reason) == (3, 2, Outcome.OK, "")


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_gradient_norm_of_a_step_left_out_is_no_divergence(monkeypatch: Any, norm: float) -> None:
    measured_rung = rung(monkeypatch)
    step = measured_rung._engine.step
    measured_rung._engine.step = lambda *arguments: dataclasses.replace(step(*arguments), grad_norm=torch.tensor(norm))
    measured_rung._c.job = job(Timing())
    measured_rung._run(1, 1, phases=True)
    windows_timed = Timed(windows=[window(0.2)] * 3, void=["overflow"], retries=0)
    assert judge(windows_timed, measured_rung._losses, MEMORY, 3) == (Outcome.OK, "")
    assert not math.isfinite(measured_rung._norms[0])
    assert judge(windows_timed, [*measured_rung._losses, norm], MEMORY, 3)[0] is Outcome.DIVERGED


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 9.0], [4.0, 1.0, 1.0, 1.0]])
def test_quartiles_lie_within_what_was_measured(values: list[float]) -> None:
    low, high = quartiles(values)
    assert low is not None and high is not None
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)
    assert quartiles(values[:1]) == (values[0], values[0]) and quartiles([]) == (None, None)


def test_utilization_is_that_of_the_timed_steps_alone(monkeypatch: Any) -> None:
    measured_rung = rung(monkeypatch)
    events: list[str] = []
    state = Sampled(utilization_pct=50.0)
    measured_rung._c.sampler = SimpleNamespace(
        start=lambda: events.append("start"), stop=lambda: events.append("stop") or state
    )
    measured_rung._c.host = SimpleNamespace(start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(measured_rung, "_tokens", lambda step, micro_step: events.append("tokens"))
    sampled: list[Any] = []
    measured_rung._run(1, 1, sampled=sampled)
    measured_rung._run(1, 1, sampled=sampled)
    assert events == ["tokens", "start", "stop"] * 2 and sampled == [state, None, state, None]


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize(("incumbent", "windows"), [(None, 8), (300.0, 8), (400.0, 3)])
def test_a_rung_that_cannot_reach_the_incumbent_is_stopped_after_three_windows(
    monkeypatch: Any, incumbent: float | None, windows: int, derived: bool
) -> None:
    """Checks the bound: steps take about 0.3 s, so 100 tokens a step are at most 332 a second, interval included."""
    measured_rung = rung(monkeypatch)
    measured_rung._c.clock = Slowing
    measured_rung._c.job = job(Timing(), incumbent_tokens_per_s=incumbent, incumbent_derived=derived)
    windows_timed = timed(monkeypatch, measured_rung)
    assert len(windows_timed.windows) == windows
    outcome, reason = judge(windows_timed, [1.0], MEMORY, 3)
    assert outcome is (Outcome.SLOW if windows == 3 else Outcome.OK)
    assert (f"the best so far {'would have' if derived else 'has'} 400" in reason) == (windows == 3)
