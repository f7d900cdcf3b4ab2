"""Student's t, compared with scipy's, and the intervals that it gives."""

import math
import random
import statistics

import pytest
from scipy.stats import t

from trainers.measuring.intervals import interval, t_quantile


def test_quantiles() -> None:
    """Checks the quantiles against scipy's: they are written out, because workers do not import scipy."""
    degrees = range(1, 400)
    assert [t_quantile(degree) for degree in degrees] == pytest.approx(list(t.ppf(0.975, degrees)), abs=5e-4)


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
