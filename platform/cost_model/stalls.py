"""Stalls of a machine: the chance that a step waits for one, and the resulting interval and mean.

A step time's residual is a mixture (Box and Tiao, "A Bayesian approach to some outlier problems", Biometrika 1968):
with the chance of a stall it is slower by a half-normal distribution of `STALL_SIGMA` in log space, else it is usual.
"""

import math

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns

STALL_SIGMA = constants.number("regression", "STALL_SIGMA")
HELD = 0.8
"""Share of step times that an interval holds."""
MOST_USUAL = 0.99
"""Share of the usual step times that an interval holds before it reaches into the stalled ones."""


def stall_chance(columns: Columns) -> Array:
    """Returns the chance that a step stalls: a pipeline, or tensor parallelism over nodes, waits for all of its nodes,
    each of which stalls independently with the stack's chance.
    """
    devices = columns.dp * columns.tp * columns.pp * columns.cp
    nodes = np.maximum(devices / columns.devices_per_node, 1.0)
    across = ((columns.pp > 1) & (nodes > 1)) | (columns.tp > columns.devices_per_node)
    return np.where(across, 1 - (1 - columns.stall_chance) ** nodes, 0.0)


def interval(sigma: Array, chance: Array) -> tuple[Array, Array]:
    """Returns the lower and upper end, in log space, of intervals that hold `HELD` of the step times; the median usual
    time is 0.

    Stalls are rare and far slower: the shortest interval holds more of the usual times before it reaches into the
    stalled ones.
    """
    from scipy.special import ndtri  # imported here, so that a command's --help does not wait for it

    usual = np.minimum(HELD / (1 - np.minimum(chance, HELD)), MOST_USUAL)
    width = ndtri((1 + usual) / 2) * sigma
    stalled = np.clip((HELD - (1 - chance) * usual) / np.maximum(chance, 1e-12), 0.0, 1.0)
    return -width, np.maximum(width, STALL_SIGMA * ndtri((1 + stalled) / 2))


def mean_ratio(sigma: Array, chance: Array) -> Array:
    """Returns the mean step time divided by the median usual one."""
    stalled = math.exp(STALL_SIGMA**2 / 2) * (1 + math.erf(STALL_SIGMA / math.sqrt(2)))
    return np.exp(sigma**2 / 2) * (1 - chance + chance * stalled)
