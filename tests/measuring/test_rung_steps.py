"""The steps that a rung times, and the figures made of them."""

# pyright: reportPrivateUsage=false
import dataclasses
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.measuring.rungs import Clock, Engine, Meter, Scheduled, job, result, rung, timed, window
from tests.samples import RECIPE, layout
from trainers.engines.stepper import HasTrainingState, methods_of
from trainers.marks.step import StepPhase
from trainers.measuring import gate_curves, gate_steps
from trainers.measuring.figures import device_fields, speed_fields
from trainers.measuring.rung import timed_accums
from trainers.measuring.sampling import Sampled
from trainers.measuring.timed_steps import losses_of, timed_steps
from trainers.records.job import GateSize, Timing
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


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
