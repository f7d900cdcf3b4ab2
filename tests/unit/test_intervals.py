"""Student's t, against published values."""

import math
import random
import statistics

import pytest

from trainers.measuring.intervals import interval, t_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (15, 2.1314), (16, 2.1199), (30, 2.0423), (120, 1.9799)]
)
def test_quantiles(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-4)


def test_an_interval_holds_the_mean_in_95_of_100_draws() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        low, high = interval([draw.gauss(10.0, 2.0) for _ in range(4)])
        held += low <= 10.0 <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_value_says_nothing_of_its_spread() -> None:
    assert interval([3.0]) == (-math.inf, math.inf)
    low, high = interval([3.0, 3.0, 3.0])
    assert low == high == statistics.fmean([3.0, 3.0, 3.0])
