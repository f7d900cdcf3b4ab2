# pyright: reportPrivateUsage=false
"""The ladder's arithmetic: memory lines, derived step times, the accumulation of a confirming run."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.samples import RECIPE, measurement
from trainers.measuring.ladder import (
    deadline_s,
    is_hopeless,
    largest_accumulation,
    may_begin,
    misfits,
    predict_gib,
    step_time_s,
    with_headroom_gib,
)
from trainers.records.job import Job, MemoryPoint
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.trial.worker import TrialWorker


def point(micro_batch: int, forward_backward: float, optimizer: float) -> MemoryPoint:
    return MemoryPoint(micro_batch=micro_batch, forward_backward_gib=forward_backward, optimizer_gib=optimizer)


def test_one_point_has_no_slope():
    assert predict_gib([], 2) is None
    assert predict_gib([point(1, 10, 12)], 2) is None


def test_one_point_has_the_growth_that_the_cost_model_foresees_as_far_as_it_is_sure():
    predicted = ((1, 11.0), (2, 16.0), (4, 26.0))
    assert predict_gib([point(2, 14.0, 12.0)], 4, predicted) == pytest.approx(14.0 + 0.9 * 10.0)
    assert predict_gib([], 4, predicted) is None, "nothing was measured"
    assert predict_gib([point(2, 14.0, 12.0)], 8, predicted) is None, "nothing is predicted of 8"
    assert predict_gib([point(1, 10.0, 12.0), point(2, 12.0, 12.0)], 4, predicted) == 16.0, "two points have a line"


def test_rungs_without_head_room_are_said_to_be_misfits():
    on = Layout(engine="ddp")
    rungs = tuple(BatchPoint(micro_batch=micro_batch, grad_accum=1) for micro_batch in (4, 8))
    cluster = Cluster(device_kind="cuda", device="d", device_memory_gib=24.0)
    job = Job(trial_id="t", recorder="r", recipe=RECIPE, layout=on, rungs=rungs, cluster=cluster, cpus_per_worker=1.0)
    points = [point(1, 10.0, 5.0), point(2, 12.0, 5.0)]  # 16 at 4, 24 at 8
    limit_gib = with_headroom_gib(23.0, 1.0)
    assert limit_gib == pytest.approx(0.97 * 24.0 - 1.0)
    (misfit,) = misfits(job, points, rungs, limit_gib)
    assert (misfit.batch, misfit.outcome) == (rungs[1], Outcome.SKIPPED)
    assert misfit.reason == "predicted 24.00 GiB from smaller micro-batches; 22.28 GiB may be used"
    assert misfits(job, points[:1], rungs, limit_gib) == []


def test_a_rung_that_would_end_in_the_time_of_the_final_runs_does_not_begin():
    """Counts warm-up steps and a pipeline's shorter ones too: with whole steps they are two fifths of a rung. Compiling
    counts half after a trial's first rung, which has the trial's start.
    """
    before = measurement(windows_s=(2.0, 2.0, 2.0), steps_per_window=1, step_times_s=(30.0, 2.0, 2.0, 2.0, 2.0))
    assert may_begin(38.0, before) and not may_begin(37.9, before)
    first = dataclasses.replace(before, startup_s=9.0)
    assert may_begin(23.0, first) and not may_begin(22.9, first)
    assert may_begin(0.0, None) and not may_begin(-0.1, None)
    assert may_begin(float("inf"), before)


def test_the_larger_phase_decides():
    points = [point(1, 10.0, 20.0), point(2, 14.0, 20.0)]
    assert predict_gib(points, 3) == 20.0  # 18 in forward and backward, 20 flat in the optimizer step
    assert predict_gib(points, 4) == 22.0


def test_a_line_that_was_too_low_is_corrected_by_its_last_residual():
    # The first two points predict 16 at 4; 19 came out. From 4 to 8 the slope is 2.5 and the residual 3 is added.
    points = [point(1, 10, 0), point(2, 12, 0), point(4, 19, 0)]
    assert predict_gib(points, 8) == pytest.approx(19 + 3.5 * 4 + 3)


def test_order_of_points_does_not_matter_and_memory_never_falls():
    points = [point(4, 9.0, 1.0), point(2, 10.0, 1.0)]
    assert predict_gib(points, 8) == 9.0


def test_full_accumulation_repeats_the_middle_micro_step():
    assert step_time_s(8, first_s=0.5, middle_s=1.0, last_s=1.5, optimizer_s=0.25) == 0.5 + 6 * 1.0 + 1.5 + 0.25
    assert step_time_s(2, first_s=0.5, middle_s=9.0, last_s=1.5, optimizer_s=0.25) == 0.5 + 1.5 + 0.25


def test_the_deadline_never_comes_before_the_watchdog_s():
    on = Layout(engine="ddp")
    cluster = Cluster(device_kind="cpu", device="d", device_memory_gib=1.0)
    job = Job(trial_id="t", recorder="r", recipe=RECIPE, layout=on, rungs=(), cluster=cluster, cpus_per_worker=1.0)
    assert deadline_s(job, job.first_step_s, allowance_s=60.0) > 2 * job.first_step_s + 60.0
    # A window of 10 steps of 2 micro-steps, 300 s each; the watchdog allows ten times that for any one.
    assert deadline_s(job, 10 * 2 * 300.0, allowance_s=3000.0) > 10 * 2 * 300.0 + 3000.0


def test_a_confirming_run_stays_within_the_longest_step():
    assert largest_accumulation(512, micro_step_s=0.5, optimizer_s=1.0, longest_step_s=20.0) == 38
    assert largest_accumulation(16, micro_step_s=0.5, optimizer_s=1.0, longest_step_s=20.0) == 16
    assert largest_accumulation(512, micro_step_s=30.0, optimizer_s=1.0, longest_step_s=20.0) == 2


def test_a_worker_writes_what_will_not_fit_and_goes_no_further():
    """Checks that the smallest head-room of all ranks decides."""
    rungs = tuple(BatchPoint(micro_batch=micro_batch, grad_accum=1) for micro_batch in (4, 8, 16))
    cluster = Cluster(device_kind="cuda", device="d", device_memory_gib=24.0)
    job = Job(
        trial_id="t", recorder="r", recipe=RECIPE, layout=Layout(engine="ddp"), rungs=rungs, cluster=cluster,
        cpus_per_worker=1.0,
        predicted_gib=((2, 11.0), (4, 15.0), (8, 27.0), (16, 51.0)),
    )  # fmt: skip
    worker: Any = object.__new__(TrialWorker)
    worker.job, worker.gather = job, lambda value: [value + 1.0, value]
    worker.meter = SimpleNamespace(limit_gib=lambda: 23.0, outside_gib=lambda: 1.0)
    written: list[Measurement] = []
    worker._record = written.append
    assert worker._fits([point(2, 10.0, 5.0)], rungs[0]) and not written
    assert not worker._fits([point(2, 10.0, 5.0)], rungs[1])
    assert [result.batch for result in written] == [rungs[1], rungs[2]]
    assert {result.outcome for result in written} == {Outcome.SKIPPED}
    worker.job = dataclasses.replace(job, tries_misfit=True)
    assert worker._fits([point(2, 10.0, 5.0)], rungs[1]) and len(written) == 2


@pytest.mark.parametrize("peak_tflops", [None, 1e-6])
def test_a_device_that_is_faster_than_its_stated_peak_climbs_on(peak_tflops: float | None):
    """Checks that only a speed which perfect scaling cannot bring up to the incumbent's ends a ladder."""
    rungs = tuple(BatchPoint(micro_batch=micro_batch, grad_accum=64 // micro_batch) for micro_batch in (1, 64))
    job = Job(
        trial_id="t", recorder="r", recipe=RECIPE, layout=Layout(engine="ddp"), rungs=rungs, cpus_per_worker=1.0,
        cluster=Cluster(device_kind="cuda", device="d", device_memory_gib=24.0), incumbent_tokens_per_s=6400.0,
        matmul_peak_tflops=peak_tflops, datasheet_peak_tflops=peak_tflops,
    )  # fmt: skip
    assert not is_hopeless(job, measurement(micro_batch=1, tokens_per_s=101.0))
    assert is_hopeless(job, measurement(micro_batch=1, tokens_per_s=99.0))
