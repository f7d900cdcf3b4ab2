"""Distance from evidence: kinds of rows for which few runs are at hand, and the errors of published runs of each."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.hardware import Device, calibrated_families
from platform.cost_model.links import devices_of

DISTANT_SIGMA = constants.words("evidence", "DISTANT_SIGMA")
UNMEASURED_SIGMA = constants.number("evidence", "UNMEASURED_SIGMA")
MOST_NODES = 8
"""Nodes up to which most of the runs at hand are."""


def many_nodes(c: Columns) -> Mask:
    """Returns the rows on more than `MOST_NODES` nodes."""
    return devices_of(c) > MOST_NODES * c.devices_per_node


def all_degrees(c: Columns) -> Mask:
    """Returns the rows with tensor, pipeline and context parallelism together."""
    return (c.parts("width") > 1) & c.is_piped & (c.parts("tokens") > 1)


def least_sigma(c: Columns) -> Array:
    """Returns the least log deviation of a step time: that of the published runs as far from other evidence as the row
    is, of the farthest kind. Of models with experts few were measured.
    """
    nodes = np.where(many_nodes(c), DISTANT_SIGMA["nodes"], 0.0)
    experts = np.where(c.blocks["experts_share"] > 0, UNMEASURED_SIGMA, 0.0)
    return np.maximum(np.maximum(nodes, experts), np.where(all_degrees(c), DISTANT_SIGMA["degrees"], 0.0))


def device_sigma(device: Device) -> float:
    """Returns the log deviation of a device's rates, of one of a family without any run at least that of published runs
    whose family's rates are taken from the others.
    """
    unknown = device.architecture not in calibrated_families()
    return max(device.sigma, DISTANT_SIGMA["family"]) if unknown else device.sigma
