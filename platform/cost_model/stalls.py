"""Stalls of a machine: the probability that a step stalls, and the resulting interval and mean.

A step time's residual is a mixture (Box and Tiao, "A Bayesian approach to some outlier problems", Biometrika 1968):
with the probability of a stall it is slower by a half-normal distribution with `STALL_SIGMA` in log space, else it is
usual.
"""

import math

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns
from platform.cost_model.links import SHARING, devices_of, spans
from trainers.spec.layout_axes import CUTTING

STALL_SIGMA = constants.number("regression", "STALL_SIGMA")
STALLED_SIGMA = constants.number("regression", "STALLED_SIGMA")
HELD = 0.8
"""Share of step times within an interval."""
MOST_USUAL = 0.99
"""Share of usual step times that an interval holds before it includes stalled ones."""


def stall_chance(columns: Columns) -> Array:
    """Returns the probability that a step stalls. It waits for all of its nodes, each of which stalls independently
    with the stack's probability. A pipeline, or tensor parallelism across nodes, waits at every micro-step; data
    parallelism alone waits once per step, so that a node stalls it less often.
    """
    c = columns
    nodes = np.maximum(devices_of(c) / c.devices_per_node, 1.0)
    across = (c.is_piped & (nodes > 1)) | spans(c, *CUTTING["width"])
    often = np.where(across, c.software.stall_chance, np.where(spans(c, *SHARING), c.software.stall_chance_data, 0.0))
    return 1 - (1 - often) ** nodes


def stalled_s(columns: Columns) -> Array:
    """Returns the additional seconds of a stalled step of a pipeline across nodes; 0 if its stack does not state them.
    For each micro-batch a stage has two exchanges with each neighbour, one after the other, and a middle stage sets the
    pace.
    """
    c = columns
    over_nodes = c.is_piped & (devices_of(c) > c.devices_per_node)
    return np.where(
        over_nodes, c.grad_accum * np.where(c.parts("depth") > 2, 4.0, 2.0) * c.software.stall_exchange_s, 0.0
    )


def interval(sigma: Array, chance: Array, longer: Array | float = 0.0) -> tuple[Array, Array]:
    """Returns the lower and upper end, in log space, of intervals that hold `HELD` of the step times, relative to the
    median usual time.

    A stalled step takes `longer` more than a usual one, as a share; if `longer` is 0, it is slower by a half-normal
    distribution. Stalls are rare and far slower, so the shortest interval holds more of the usual times before it
    includes stalled ones.
    """
    from scipy.special import ndtri  # a slow import: --help does not wait for it

    usual = np.minimum(HELD / (1 - np.minimum(chance, HELD)), MOST_USUAL)
    width = ndtri((1 + usual) / 2) * sigma
    stalled = np.clip((HELD - (1 - chance) * usual) / np.maximum(chance, 1e-12), 0.0, 1.0)
    low, high = -width, np.maximum(width, STALL_SIGMA * ndtri((1 + stalled) / 2))
    longer = np.asarray(longer)
    if not longer.any():
        return low, high
    share = longer / (1 + longer)
    late, late_sigma = np.log1p(longer), np.hypot(sigma * (1 - share), STALLED_SIGMA * share)
    tail = ndtri(HELD)
    alone = ndtri((1 + np.minimum(HELD / np.maximum(chance, HELD), MOST_USUAL)) / 2) * late_sigma
    # Few stalls: only usual steps; mostly stalls: only stalled steps; otherwise both.
    few_stall, most_stall = chance <= 1 - HELD / MOST_USUAL, chance >= HELD / MOST_USUAL
    mode_low = np.select([few_stall, most_stall], [-width, late - alone], -tail * sigma)
    mode_high = np.select([few_stall, most_stall], [width, late + alone], late + tail * late_sigma)
    return np.where(longer > 0, mode_low, low), np.where(longer > 0, mode_high, high)


def mean_ratio(sigma: Array, chance: Array, longer: Array | float = 0.0) -> Array:
    """Returns the mean step time divided by the median usual one."""
    half_normal = math.exp(STALL_SIGMA**2 / 2) * (1 + math.erf(STALL_SIGMA / math.sqrt(2)))
    stalled = np.where(np.greater(longer, 0), np.add(longer, 1), half_normal)
    return np.exp(sigma**2 / 2) * (1 - chance + chance * stalled)
