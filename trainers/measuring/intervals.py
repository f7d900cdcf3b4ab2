"""95 % intervals of a mean of few values, by Student's t. Pure Python, because workers use it too."""

import math
import statistics
from collections.abc import Sequence

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Quantiles of Student's t at 0.975 for 1, 2, ... degrees of freedom (NIST/SEMATECH e-Handbook, section 1.3.6.7.2)."""


def t_quantile(degrees: int) -> float:
    """Returns the 0.975 quantile of Student's t for `degrees` of freedom (at least 1). Beyond the table it uses the
    first terms of the expansion in 1/degrees (Abramowitz and Stegun 26.7.5), accurate to 2e-5 there.
    """
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of `values`, taken as independent draws; infinite for fewer than two."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean = statistics.fmean(values)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half
