"""Calibration: it learns what the measurements say and nothing else."""

import dataclasses
import itertools

import numpy as np
import pytest

from platform.cost_model.calibration import calibrate
from platform.cost_model.engines import ENGINES
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from tests.cost_model.points import GPT_39B, fsdp
from trainers.values.batch import BatchPoint, divides
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe

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
COLUMNS = from_points(
    [
        (RECIPE, layout, BatchPoint.of(RECIPE, layout, micro_batch))
        for layout in (*PIPELINED, *SHARDED)
        for micro_batch in (1, 2, 4, 8)
        if divides(RECIPE, layout, micro_batch)
    ],
    find_cluster("8x8xA100"),
)


def test_a_common_error_is_learned_from_one_measurement_and_the_interval_narrows() -> None:
    prediction = predict(COLUMNS)
    taken = COLUMNS.take(np.array([0]))
    truth = prediction.step.total_s * 1.3
    corrected = calibrate(taken, predict(taken), truth[:1]).apply(COLUMNS, prediction)
    before = np.median(np.abs(prediction.step.total_s / truth - 1))
    after = np.median(np.abs(corrected.step.total_s / truth - 1))
    assert before == pytest.approx(0.23, abs=0.01)
    assert after < 0.65 * before, "one measurement is in part its own point's"
    assert corrected.sigma[0] < prediction.sigma[0]


def test_intervals_widen_where_the_measured_points_scatter() -> None:
    prediction = predict(COLUMNS)
    rows = np.arange(0, 80, 10)
    taken, of_taken = COLUMNS.take(rows), predict(COLUMNS.take(rows))
    off = np.where(np.arange(len(rows)) % 2, 1.5, 1 / 1.5)
    scattered = calibrate(taken, of_taken, of_taken.step.total_s * off).apply(COLUMNS, prediction)
    alike = calibrate(taken, of_taken, of_taken.step.total_s * 1.02).apply(COLUMNS, prediction)
    assert np.median(scattered.sigma) > 1.3 * np.median(alike.sigma)
    assert np.median(scattered.sigma) > np.median(prediction.sigma)


def test_a_stall_of_the_machine_moves_the_others_little() -> None:
    """Seven points as predicted, and one that took ten times as long."""
    prediction = predict(COLUMNS)
    rows = np.arange(0, 80, 10)
    taken, of_taken = COLUMNS.take(rows), predict(COLUMNS.take(rows))
    stalled = of_taken.step.total_s.copy()
    stalled[3] *= 10
    corrected = calibrate(taken, of_taken, stalled).apply(COLUMNS, prediction)
    assert np.median(np.abs(corrected.step.total_s / prediction.step.total_s - 1)) < 0.05


def test_an_error_of_one_part_moves_layouts_by_their_share_of_it() -> None:
    """Tensor parallelism twice as slow as thought: layouts without it are left nearly alone."""
    prediction = predict(COLUMNS)
    share = prediction.step.tensor_s / prediction.step.total_s
    truth = prediction.step.total_s * (1 + share)
    of_one_engine = np.flatnonzero(np.broadcast_to(COLUMNS.engine, COLUMNS.shape) == ENGINES.index("deepspeed"))
    ordered = of_one_engine[np.argsort(share[of_one_engine], kind="stable")]
    rows = ordered[[-1, 0, len(ordered) // 2]]
    taken = COLUMNS.take(rows)
    corrected = calibrate(taken, predict(taken), truth[rows]).apply(COLUMNS, prediction)
    without = share < 1e-6
    moved = np.abs(np.log(corrected.step.total_s / prediction.step.total_s))
    assert 1.25 * np.median(moved[without]) < np.median(moved[share > 0.1])
    assert np.median(np.abs(corrected.step.total_s / truth - 1)) < 0.06


def test_parts_still_add_up_after_correction() -> None:
    prediction = predict(COLUMNS)
    taken = COLUMNS.take(np.array([0, 1]))
    corrected = calibrate(taken, predict(taken), predict(taken).step.total_s * 0.8).apply(COLUMNS, prediction)
    step = corrected.step
    parts = sum(getattr(step, field.name) for field in dataclasses.fields(step) if field.name != "total_s")
    assert np.allclose(parts, step.total_s)


def test_the_error_before_and_after_is_told() -> None:
    rows = np.arange(0, 60, 10)
    taken = COLUMNS.take(rows)
    prediction = predict(taken)
    told = calibrate(taken, prediction, prediction.step.total_s * 1.25)
    assert told.error_before == pytest.approx(0.2)
    assert told.error_after < 0.05


def test_nothing_measured_changes_nothing() -> None:
    prediction = predict(COLUMNS)
    none = COLUMNS.take(np.array([], dtype=int))
    assert calibrate(none, predict(none), np.array([])).apply(COLUMNS, prediction) is prediction
