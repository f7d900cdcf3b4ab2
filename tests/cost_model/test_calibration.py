"""Calibration, which learns from measurements alone."""

import dataclasses
import itertools

import numpy as np
import pytest

from platform.cost_model.calibration import Calibration, calibrate, gp_inputs_of_rows
from platform.cost_model.columns import Array
from platform.cost_model.engines import ENGINES
from platform.cost_model.features import from_points
from platform.cost_model.gp_inputs import GPInputs, Index
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from platform.cost_model.regression import STALL_SIGMA, TIME, learn
from tests.cost_model.points import GPT_39B, fsdp
from trainers.spec.axis import axes_of
from trainers.spec.batch import BatchPoint, divides
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

KERNELS = [
    {"checkpointing": checkpointing, "attention": attention, "compile": "block"}
    for checkpointing, attention in itertools.product(("none", "full"), ("eager", "sdpa"))
]
RECIPE = Recipe(model=GPT_39B, seq_len=2048, global_batch=256)
PIPELINED = [
    Layout(engine="deepspeed", zero_stage=1, dp_shard=64 // (tp * pp), tp=tp, pp=pp, **kernels)  # type: ignore[arg-type]
    for tp, pp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8))
    for kernels in KERNELS
]
SHARDED = [fsdp(dp_shard=64 // tp, tp=tp, grad_sync="every", **kernels) for tp in (1, 2, 4, 8) for kernels in KERNELS]
POINTS = [
    (RECIPE, layout, BatchPoint.of(RECIPE, layout, micro_batch))
    for layout in (*PIPELINED, *SHARDED)
    for micro_batch in (1, 2, 4, 8)
    if divides(RECIPE, layout, micro_batch)
]
COLUMNS = from_points(POINTS, find_cluster("8x8xA100"))
PREDICTION = predict(COLUMNS)
PLACES = gp_inputs_of_rows(
    [{name: getattr(layout, name) for name in axes_of(Layout)} for _, layout, _ in POINTS], COLUMNS, PREDICTION
)
STEP_S = PREDICTION.step.total_s
EVERY_TENTH = np.arange(0, 80, 10)


def measured(rows: Index, seconds: Array) -> Calibration:
    """Returns the calibration that step times of `seconds` at `rows` give."""
    return calibrate(PLACES, PREDICTION, np.asarray(rows, dtype=np.int64), seconds)


def test_a_common_error_is_learned_from_one_measurement_and_the_interval_narrows() -> None:
    truth = STEP_S * 1.3
    corrected = measured(np.array([0]), truth[:1]).corrected
    before = np.median(np.abs(STEP_S / truth - 1))
    after = np.median(np.abs(corrected.step.total_s / truth - 1))
    assert before == pytest.approx(0.23, abs=0.01)
    assert after < 0.75 * before, "one measurement is in part its own point's"
    assert corrected.sigma[0] < PREDICTION.sigma[0]


def test_intervals_widen_where_the_measured_points_scatter() -> None:
    off = np.where(np.arange(len(EVERY_TENTH)) % 2, 1.5, 1 / 1.5)
    scattered = measured(EVERY_TENTH, STEP_S[EVERY_TENTH] * off).corrected
    alike = measured(EVERY_TENTH, STEP_S[EVERY_TENTH] * 1.02).corrected
    assert np.median(scattered.sigma) > 1.3 * np.median(alike.sigma)
    assert np.median(scattered.sigma) > np.median(PREDICTION.sigma)


def test_a_stall_of_the_machine_moves_the_others_little() -> None:
    """Calibrates on seven points that took as long as predicted and one that took ten times as long."""
    stalled = STEP_S[EVERY_TENTH].copy()
    stalled[3] *= 10
    corrected = measured(EVERY_TENTH, stalled).corrected
    assert np.median(np.abs(corrected.step.total_s / STEP_S - 1)) < 0.05


def test_of_three_measurements_a_stall_is_told_from_an_error_that_all_share() -> None:
    """Checks that one of three steps that took five times as long moves the median prediction by less than 10 %,
    whereas 16 steps that all took half as long again lengthen the predictions about as much: the machine is slower.
    """
    rows = np.array([0, 20, 40])
    predicted_s = measured(rows, STEP_S[rows] * np.array([1.0, 5.0, 1.0])).corrected.step.total_s
    assert np.median(np.abs(predicted_s / STEP_S - 1)) < 0.1
    every = np.arange(0, 80, 5)
    all_slower = measured(every, STEP_S[every] * 1.5).corrected.step.total_s
    assert np.median(np.abs(all_slower / STEP_S / 1.5 - 1)) < 0.1


def test_what_is_picked_as_a_stall_has_just_a_wider_noise() -> None:
    """Checks that the inverse of the covariance, which the stall changes in one row, is the inverse of the covariance
    with the stall's variance added, and that the predictions are those without the stalled point.
    """
    rows = np.array([0, 20, 40])
    learned = learn(PLACES, rows, np.array([0.02, 3.0, -0.02]), TIME)
    alone = learn(PLACES, rows[[0, 2]], np.array([0.02, -0.02]), TIME)
    covariance = np.linalg.inv(learned.inverse)
    usual = np.linalg.inv(learn(PLACES, rows, np.zeros(3), learned.prior).inverse)
    assert covariance[1, 1] - usual[1, 1] > 0.9 * STALL_SIGMA**2
    every = np.arange(len(PLACES))
    assert np.allclose(learned.each(every)[0], alone.each(every)[0], atol=0.05)


def test_a_point_that_is_predicted_worse_keeps_more_of_its_error_to_itself() -> None:
    """Checks that less certain predictions attribute more of an error to the measured point itself and move another
    point less. This counters the winner's curse: the point that is predicted fastest often owes that to its own error.
    """
    zeros = np.zeros(1, dtype=np.int64)
    means: list[float] = []
    for sigma in (0.05, 0.5):
        places = dataclasses.replace(PLACES, sigma=np.full(len(PLACES), sigma))
        means.append(float(learn(places, zeros, np.array([-0.3]), TIME).each(np.array([40]))[0][0]))
    assert means[0] < means[1] < 0


def test_an_error_of_one_part_moves_layouts_by_their_share_of_it() -> None:
    """Checks that layouts without tensor parallelism move less than layouts that spend much of a step on it, where
    tensor parallelism takes twice as long as predicted.
    """
    share = PREDICTION.step.tensor_s / STEP_S
    truth = STEP_S * (1 + share)
    of_one_engine = np.flatnonzero(np.broadcast_to(COLUMNS.engine, COLUMNS.shape) == ENGINES.index("deepspeed"))
    ordered = of_one_engine[np.argsort(share[of_one_engine], kind="stable")]
    rows = ordered[[-1, 0, len(ordered) // 2]]
    corrected = measured(rows, truth[rows]).corrected
    without = share < 1e-6
    moved = np.abs(np.log(corrected.step.total_s / STEP_S))
    assert 1.25 * np.median(moved[without]) < np.median(moved[share > 0.1])
    assert np.median(np.abs(corrected.step.total_s / truth - 1)) < np.median(np.abs(STEP_S / truth - 1))


def test_parts_still_add_up_after_correction() -> None:
    step = measured(np.array([0, 1]), STEP_S[:2] * 0.8).corrected.step
    parts = sum(getattr(step, field.name) for field in dataclasses.fields(step) if field.name != "total_s")
    assert np.allclose(parts, step.total_s)


def test_the_error_before_and_after_is_told() -> None:
    calibration = measured(EVERY_TENTH, STEP_S[EVERY_TENTH] * 1.25)
    assert calibration.error_before == pytest.approx(0.2)
    assert calibration.error_after < 0.06


def test_nothing_measured_changes_nothing() -> None:
    assert measured(np.array([], dtype=np.int64), np.array([])).corrected is PREDICTION


def test_measurements_that_contradict_each_other_earn_less() -> None:
    rows = np.array([0, 20, 40])
    alike, contrary = (measured(rows, STEP_S[rows] * np.array(off)) for off in ([1.2, 1.2, 1.2], [1.2, 1.0, 0.8]))
    assert contrary.learned.earned() < 0.8 < alike.learned.earned() == 1
    assert measured(rows[:1], STEP_S[:1] * 1.3).learned.earned() == 1
    mean = contrary.learned.each(np.arange(len(PLACES)))[0]
    moved = np.log(contrary.corrected.step.total_s / STEP_S)
    assert moved == pytest.approx(mean * contrary.learned.earned())


def test_points_that_share_an_axis_with_all_measured_learn_more_of_them_than_others() -> None:
    tp = np.array([layout.tp for _, layout, _ in POINTS])
    rows = np.flatnonzero(tp == 1)[:3]
    mean = learn(PLACES, rows, np.full(3, 0.2), TIME).each(np.arange(len(PLACES)))[0]
    assert 0 < np.median(mean[tp == 8]) < 0.95 * np.median(mean[tp == 1])


def test_a_step_that_the_host_paces_learns_little_of_those_that_the_device_paces() -> None:
    share = np.where(np.arange(len(PLACES)) % 2, 0.9, 0.0)
    mean = learn(dataclasses.replace(PLACES, host_share=share), EVERY_TENTH, np.full(8, 0.2), TIME).each(
        np.arange(len(PLACES))
    )[0]
    assert np.median(mean[share > 0]) < 0.7 * np.median(mean[share == 0])


def test_what_one_value_of_an_axis_has_of_a_device_s_error_fades_with_the_host_s_pace_too() -> None:
    """Checks that an error of the host's, measured at one value of an axis, moves a point of the device's pace no more
    if its value is another: else the two parts of the device's error cancel each other at the measured value alone.
    """
    share = np.append(np.linspace(0.0, 0.8, 9), [0.0, 0.0])
    of_axis = np.append(np.zeros(10), [1.0])[:, None].astype(np.float32)
    places = GPInputs(effects=0.04 * of_axis, place=of_axis, host_share=share, sigma=np.zeros(11), stall=np.zeros(11))
    prior = dataclasses.replace(TIME, smooth=0.0, stall=0.0)
    mean = learn(places, np.arange(9), 0.3 * share[:9], prior).each(np.arange(11))[0]
    assert abs(mean[10]) <= abs(mean[9])
