"""Stalls: intervals and means of a mixture, by drawing from it, and which layouts wait for every node."""

import dataclasses

import numpy as np
import pytest

from platform.cost_model.calibration import calibrate
from platform.cost_model.predict import predict
from platform.cost_model.stalls import STALL_SIGMA, STALLED_SIGMA, interval, mean_ratio, stall_chance, stalled_s
from tests.cost_model.points import changed, fsdp, point
from tests.cost_model.test_calibration import PLACES, PREDICTION, STEP_S
from trainers.spec.layout import Layout

CHANCES = (0.0, 0.05, 0.2, 0.4, 0.75)


def drawn(sigma: float, chance: float) -> np.ndarray:
    """Returns the log residuals of 200,000 steps, each of which is a stall with this `chance`."""
    draw = np.random.default_rng(0)
    usual = draw.normal(0, sigma, 200_000)
    return np.where(draw.random(200_000) < chance, np.abs(draw.normal(0, STALL_SIGMA, 200_000)), usual)


@pytest.mark.parametrize("chance", CHANCES)
def test_an_interval_holds_four_of_five_steps_however_many_stall(chance: float) -> None:
    low, high = interval(np.array(0.1), np.array(chance))
    steps = drawn(0.1, chance)
    assert ((steps >= low) & (steps <= high)).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("chance", CHANCES)
def test_the_mean_is_that_of_drawing(chance: float) -> None:
    mean = np.exp(drawn(0.1, chance)).mean()
    assert float(mean_ratio(np.array(0.1), np.array(chance))) == pytest.approx(mean, rel=0.02)


def test_few_stalls_widen_an_interval_little_and_many_reach_into_them() -> None:
    low, high = interval(np.full(3, 0.1), np.array([0.0, 0.1, 0.4]))
    assert high[0] == pytest.approx(0.128, abs=0.001) and low[0] == -high[0]
    assert high[1] < 1.3 * high[0] and high[2] > 4 * high[0] and low[2] > -0.3


@pytest.mark.parametrize("longer", [0.5, 20.0])
@pytest.mark.parametrize("chance", [*CHANCES, 0.95])
def test_where_stalls_have_a_length_intervals_hold_as_many_and_means_are_those_of_drawing(
    chance: float, longer: float
) -> None:
    draw = np.random.default_rng(0)
    usual = draw.normal(0, 0.1, 200_000)
    added = longer * np.exp(draw.normal(0, STALLED_SIGMA, 200_000))
    steps = np.log(np.exp(usual) + np.where(draw.random(200_000) < chance, added, 0.0))
    low, high = interval(np.array(0.1), np.array(chance), np.array(longer))
    assert ((steps >= low) & (steps <= high)).mean() == pytest.approx(0.8, abs=0.04)
    ratio = float(mean_ratio(np.array(0.1), np.array(chance), np.array(longer)))
    assert ratio == pytest.approx(np.exp(steps).mean(), rel=0.02)
    alone = interval(np.array(0.1), np.array(0.0))
    if chance <= 0.05:  # the usual steps alone
        assert low == -high and high < 1.3 * alone[1]
    if chance == 0.95:  # the stalled ones alone
        assert low > 0.2


def test_a_stalled_step_waits_for_each_exchange_of_each_micro_batch() -> None:
    def seconds(pp: int, grad_accum: int, cluster: str = "2x8xA100") -> float:
        devices = 16 if cluster.startswith("2") else 8
        layout = Layout(engine="deepspeed", zero_stage=1, pp=pp, dp_shard=devices // pp)
        columns = point(layout, cluster=cluster, grad_accum=grad_accum)
        return float(stalled_s(changed(columns, stall_exchange_s=0.3))[0])

    assert seconds(2, 8) == pytest.approx(8 * 2 * 0.3)
    assert seconds(4, 8) == pytest.approx(8 * 4 * 0.3) == seconds(8, 8)
    assert seconds(4, 16) == 2 * seconds(4, 8)
    assert seconds(1, 8) == 0 == seconds(4, 8, cluster="8xA100")


def test_pipelines_over_nodes_wait_for_each_of_them() -> None:
    def chance(layout: Layout, cluster: str) -> float:
        columns = changed(point(layout, cluster=cluster), stall_chance=0.02)
        return float(stall_chance(columns)[0])

    piped = Layout(engine="deepspeed", zero_stage=1, pp=2, dp_shard=4)
    assert chance(piped, "8xA100") == 0.0
    assert chance(dataclasses.replace(piped, dp_shard=8), "2x8xA100") == pytest.approx(1 - 0.98**2)
    assert chance(dataclasses.replace(piped, dp_shard=32), "8x8xA100") == pytest.approx(1 - 0.98**8)
    assert chance(fsdp(dp_shard=16), "2x8xA100") == 0.0


def test_who_saw_stalls_expects_more_of_them_and_does_not_take_the_others_for_slow() -> None:
    """Calibrates on six steps of which three took five, fifteen and three times as long: the median of the others
    stays, their mean grows.
    """
    rows = np.array([0, 10, 20, 30, 40, 50])
    slower = np.array([5.0, 1.0, 15.0, 1.0, 3.0, 1.0])
    calibrated = calibrate(PLACES, PREDICTION, rows, STEP_S[rows] * slower).corrected
    quiet = calibrate(PLACES, PREDICTION, rows, STEP_S[rows]).corrected
    assert np.median(calibrated.step.total_s / STEP_S) < 1.2
    assert np.all(quiet.stall == 0) and np.all(calibrated.stall > 0.1)
    assert np.median(calibrated.expected_s / STEP_S) > 1.5


def test_where_most_steps_are_slow_the_prediction_is_wrong_and_not_the_machine() -> None:
    rows = np.array([0, 20, 40])
    calibrated = calibrate(PLACES, PREDICTION, rows, STEP_S[rows] * np.array([5.0, 15.0, 3.0])).corrected
    assert np.median(calibrated.step.total_s / STEP_S) > 1.5


def test_a_stack_that_never_stalled_has_plain_intervals() -> None:
    prediction = predict(point(fsdp(dp_shard=16), cluster="2x8xA100"))
    assert prediction.stall[0] == 0
    plain = np.exp(1.2816 * prediction.sigma[0])
    assert prediction.high_s[0] / prediction.step.total_s[0] == pytest.approx(plain, rel=1e-4)
