# pyright: reportPrivateUsage=false
"""The arithmetic of a rung that needs no process group: which phase a peak belongs to, which windows count."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.samples import RECIPE, layout
from trainers.engines.stepper import HasTrainingState, methods_of
from trainers.marks.step import Marks, StepPhase, StepResult
from trainers.measuring import gate_curves, gate_steps
from trainers.measuring.figures import Timed, TimedWindow, device_fields, judge, quartiles, speed_fields
from trainers.measuring.rung import Rung, timed_accums
from trainers.measuring.sampling import Sampled
from trainers.measuring.timed_steps import losses_of, timed_steps
from trainers.records.job import GateSize, Timing
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


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
        self.peak = 0.0

    def reset_peak(self) -> None:
        self.peak = 0.0

    def peak_allocated_gib(self) -> float:
        return self.peak

    def peak_reserved_gib(self) -> float:
        return self.peak

    def enforce_cap(self) -> None:
        return


class Engine:
    """An engine that sets the meter's peak as a real one would raise it."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    marks_micro_steps = True

    def step(self, micro_batches: Sequence[Any], marks: Marks) -> StepResult:
        for _ in micro_batches:
            marks.begin(StepPhase.MICRO_STEP)
            self.meter.peak = max(self.meter.peak, 1.0)
        marks.begin(StepPhase.OPTIMIZER_STEP)
        self.meter.peak = max(self.meter.peak, 5.0)
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


MEMORY = [{"reserved": 1.0, "outside": 0.0, "limit": 4.0}]


def job(timing: Timing, **fields: Any) -> Any:
    """Returns the fields that a rung reads of its job."""
    defaults = {"is_winner_run": False, "incumbent_tokens_per_s": None, "recipe": SimpleNamespace(seq_len=50)}
    defaults["layout"] = SimpleNamespace(data_parallel=1)
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


class Slowing(Clock):
    """A clock whose steps differ a little from window to window: 0.1 s in every third, slightly more in the others."""

    measured_rung = 0

    def __init__(self) -> None:
        type(self).measured_rung += 1
        super().__init__(0.1 + 0.001 * (type(self).measured_rung % 3))


@pytest.mark.parametrize(("incumbent", "windows"), [(None, 8), (300.0, 8), (400.0, 3)])
def test_a_rung_that_cannot_reach_the_incumbent_is_stopped_after_three_windows(
    monkeypatch: Any, incumbent: float | None, windows: int
) -> None:
    """Checks the bound: steps take about 0.3 s, so 100 tokens a step are at most 332 a second, interval included."""
    measured_rung = rung(monkeypatch)
    measured_rung._c.clock = Slowing
    measured_rung._c.job = job(Timing(), incumbent_tokens_per_s=incumbent)
    windows_timed = timed(monkeypatch, measured_rung)
    assert len(windows_timed.windows) == windows
    outcome, reason = judge(windows_timed, [1.0], MEMORY, 3)
    assert outcome is (Outcome.SLOW if windows == 3 else Outcome.OK)
    assert ("the best so far has 400" in reason) == (windows == 3)


def test_steps_asked_for_are_timed_and_a_winner_s_last_run_is_long(monkeypatch: Any) -> None:
    measured_rung = rung(monkeypatch)
    measured_rung._c.job = job(Timing(steps=20))
    assert measured_rung._steps_per_window(0.3) == 2
    assert len(timed(monkeypatch, measured_rung).windows) == 20, "windows of one step here"
    measured_rung._c.job = job(Timing(winner_s=30.0), is_winner_run=True)
    assert measured_rung._steps_per_window(0.3) == 13, "an eighth of 30 s"
    assert len(timed(monkeypatch, measured_rung).windows) == pytest.approx(100, abs=1), "30 s in steps of 0.3 s"


def test_whole_steps_begin_with_a_short_one_that_tells_how_long_they_may_take(monkeypatch: Any) -> None:
    """Checks the deadline: the driver waits a fixed time for the first step, which 256 micro-steps would exceed."""
    measured_rung = rung(monkeypatch, grad_accum=256)
    promised: list[float] = []
    measured_rung._c.promise = promised.append
    measured_rung._c.job = job(
        Timing(whole_steps=True),
        first_step_s=300.0,
        layout=SimpleNamespace(compile="none", data_parallel=1),
    )
    measured_rung._engine.in_effect = dict[str, Any]
    monkeypatch.setattr("trainers.spec.engines.mismatches", lambda *_, **__: ())
    monkeypatch.setattr(measured_rung, "_windows", lambda accum, per_window, shorter: None)
    monkeypatch.setattr(measured_rung, "_measurement", lambda timed, accum, **fields: (accum, fields["warmup_steps"]))
    assert measured_rung.measure({}) == (256, 3)
    assert measured_rung._times_s == pytest.approx([0.4, 0.4, 25.7]), "a micro-step and an optimizer step take 0.1 s"
    assert promised == pytest.approx([300.0, 0.4, 256 * 0.4 / 3])


def test_figures_are_those_of_the_slowest_rank_s_windows_and_of_all_devices() -> None:
    held = Sampled(utilization_pct=90.0, sm_clock_mhz=1500.0, power_w=600.0, held_back=("power cap",))
    free = Sampled(utilization_pct=2.0, sm_clock_mhz=1980.0, power_w=100.0)
    fields = device_fields([window(0.2, held, free), window(0.2, free, free)])
    assert fields["idle_devices"] == 1 and fields["utilization_by_device_pct"] == (46.0, 2.0)
    assert fields["sm_clock_mhz"] == (1500.0, 1980.0) and fields["power_w"] == (700.0, 200.0)
    assert fields["held_back"] == ("power cap", "")
    assert fields["others_gib"] == ()
    alone, beside = (dataclasses.replace(free, others_gib=gib) for gib in (0.0, 22.8))
    fields = device_fields([window(0.2, alone, beside), window(0.2, alone, alone), window(0.2, None, free)])
    assert fields["others_gib"][:2] == (22.8, 0.0) and math.isnan(fields["others_gib"][2])
    silent = device_fields([window(0.2, None, None)])
    assert silent["utilization_pct"] is None and silent["sm_clock_mhz"] == ()


@pytest.mark.parametrize("datasheet", [989.4, None])
def test_a_rate_is_told_as_a_share_of_both_peaks(datasheet: float | None) -> None:
    on = layout()
    fake_job: Any = SimpleNamespace(recipe=RECIPE, layout=on, datasheet_peak_tflops=datasheet)
    fields = speed_fields(fake_job, BatchPoint(micro_batch=1, grad_accum=4), [window(2.0)], 4, 700.0)
    assert fields["model_tflops_per_gpu"] == pytest.approx(700.0 * fields["share_of_matmul_peak"])
    if datasheet is None:  # a device that the catalogue lacks
        assert fields["datasheet_peak_tflops"] is None and fields["share_of_datasheet_peak"] is None
    else:
        assert fields["model_tflops_per_gpu"] == pytest.approx(989.4 * fields["share_of_datasheet_peak"])


def test_a_schedule_is_timed_whole_and_the_watchdog_waits_for_all_of_it(monkeypatch: Any) -> None:
    """Checks schedules of eight micro-steps of 300 s; the first has nothing but the first step's own limit."""
    measured_rung = rung(monkeypatch, Scheduled, grad_accum=8)
    allowed: list[float] = []
    noted: list[float] = []
    measured_rung._c.watchdog = SimpleNamespace(
        beat=lambda where, *, allowed_s, pending: allowed.append(allowed_s), saw=noted.append, allowance_s=60.0
    )
    measured_rung._c.clock = lambda: Clock(2400.0)
    ddp = Layout(engine="ddp")
    assert timed_accums(measured_rung._engine, ddp, measured_rung._batch) == (8,)
    assert timed_accums(cast(Any, Engine(Meter())), ddp, measured_rung._batch) == (3,)
    timed_step = measured_rung._run(1, 8, watch_s=300.0, phases=True)
    assert (timed_step.first_micro_s, timed_step.middle_micro_s, timed_step.last_micro_s) == (None, None, None)
    assert (timed_step.longest_beat_s, timed_step.optimizer_s, noted) == (2400.0, 2400.0, [2400.0])
    measured_rung._run(1, 8)
    assert allowed == [2400.0, 2400.0, 48000.0, 48000.0]
    assert (measured_rung._peaks["forward_backward"], measured_rung._peaks["optimizer"]) == (0.0, 0.0)
    fields = speed_fields(
        cast(Any, SimpleNamespace(recipe=RECIPE, layout=layout(), datasheet_peak_tflops=None)),
        BatchPoint(micro_batch=1, grad_accum=8),
        [dataclasses.replace(window(2.0), first_micro_s=None, middle_micro_s=None, last_micro_s=None)],
        8,
        700.0,
    )
    assert fields["last_micro_step_s"] is None and fields["step_time_s"] == 2.0


def test_the_loss_is_that_of_the_ranks_that_computed_one_weighted_by_tokens() -> None:
    """Checks losses as in a pipeline, where the last stage alone has one."""
    own_results = [result(1, loss=3.0, num_tokens=10), result(1, loss=1.0, num_tokens=30)]
    other = [(20.0, 10), (0.0, 0)]
    assert losses_of(own_results, lambda value: [value, other, [(math.nan, 0), (0.0, 0)]]) == [2.5, 1.0]
    with pytest.raises(ValueError, match="gives its loss on one rank at least"):
        losses_of([result(1, num_tokens=0)], lambda value: [value])
    assert math.isnan(losses_of([result(1, loss=math.nan)], lambda value: [value])[0])


@pytest.mark.parametrize(
    ("spans", "phases", "sentence"),
    [
        (3, [(StepPhase.MICRO_STEP, StepPhase.OPTIMIZER_STEP)], "got 3 marked phases in 1 steps"),
        (2, [(StepPhase.MICRO_STEP, StepPhase.MICRO_STEP)], "ends with its one optimizer step"),
        (
            5,
            [(StepPhase.MICRO_STEP, StepPhase.OPTIMIZER_STEP), (StepPhase.SCHEDULE,) * 2 + (StepPhase.OPTIMIZER_STEP,)],
            "the same",
        ),
    ],
)
def test_an_engine_whose_marks_belie_its_step_is_refused(spans: int, phases: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        timed_steps([0.1] * spans, phases)


def test_a_fixed_accumulation_is_gated_by_the_gate_s_own_batch(monkeypatch: Any) -> None:
    noted: list[Any] = []

    class Runner:
        def __init__(self, context: Any, engine: Any, source: Any, batch: BatchPoint) -> None:
            noted.append(batch)

    def run(engine: Any, recipe: Recipe, *_: Any, **__: Any) -> gate_steps.GateSteps:
        noted.append(recipe.global_batch)
        return gate_steps.GateSteps(
            losses=(1.0, 1.0),
            grad_norms=(2.0, 2.0),
            step_times_s=(0.5, 0.5),
            tensors=("a",),
            sketches=(),
            clip_error=0.0,
            update_error=0.0,
            update_tensor="a",
        )

    monkeypatch.setattr(gate_curves, "StepRunner", Runner)
    monkeypatch.setattr(gate_steps, "run", run)
    fixed = dataclasses.replace(RECIPE, global_batch=0, grad_accum=16)
    fake_job: Any = SimpleNamespace(recipe=fixed, layout=layout(), trial_id="t1", is_winner_run=True, first_step_s=60.0)
    context: Any = SimpleNamespace(
        job=fake_job, watchdog=SimpleNamespace(beat=lambda *_, **__: None), device=torch.device("cpu"), gather=list
    )
    batch = BatchPoint(micro_batch=1, grad_accum=2)
    engine: Any = SimpleNamespace(**dict.fromkeys(("step", "close", *methods_of(HasTrainingState))))
    curves = gate_curves.curves_of(context, engine, GateSize(sequences=8), batch)
    assert noted == [batch, 8] and curves.recipe == fixed and len(curves.losses) == 2
    assert curves.step_times_s == (0.5, 0.5) and curves.update_tensor == "a" and not curves.is_reference


def test_a_step_that_fp16_skipped_runs_again_on_the_same_batch(monkeypatch: Any) -> None:
    measured_rung = rung(monkeypatch)
    measured_rung._c.job = SimpleNamespace(first_step_s=60.0)
    steps: list[int] = []
    monkeypatch.setattr(measured_rung, "_tokens", lambda step, micro_step: steps.append(step))
    assert [measured_rung.numbered(number) for number in (0, 0, 1)] == [(1.0, 1.0, pytest.approx(0.3))] * 3
    assert steps == [0, 0, 0, 0, 1, 1]
