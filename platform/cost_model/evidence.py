"""Kinds of rows with few measured runs, and the errors of published runs of each kind."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.hardware import Device, calibrated_families
from platform.cost_model.links import devices_of

DISTANT_SIGMA = constants.words("evidence", "DISTANT_SIGMA")
UNMEASURED_SIGMA = constants.number("evidence", "UNMEASURED_SIGMA")
MOST_NODES = 8
"""Number of nodes up to which most measured runs are."""


def many_nodes(c: Columns) -> Mask:
    """Returns the rows on more than `MOST_NODES` nodes."""
    return devices_of(c) > MOST_NODES * c.devices_per_node


def all_degrees(c: Columns) -> Mask:
    """Returns the rows with tensor, pipeline and context parallelism together."""
    return (c.parts("width") > 1) & c.is_piped & (c.parts("tokens") > 1)


def least_sigma(c: Columns) -> Array:
    """Returns the least log deviation of a step time: the largest error of published runs over the kinds of the row.
    Few models with experts were measured.
    """
    nodes = np.where(many_nodes(c), DISTANT_SIGMA["nodes"], 0.0)
    experts = np.where(c.blocks["experts_share"] > 0, UNMEASURED_SIGMA, 0.0)
    return np.maximum(np.maximum(nodes, experts), np.where(all_degrees(c), DISTANT_SIGMA["degrees"], 0.0))


def device_sigma(device: Device) -> float:
    """Returns the log deviation of a device's rates. Without any run on the device's family it is at least the error of
    published runs whose family's rates are derived from other families.
    """
    unknown = device.architecture not in calibrated_families()
    return max(device.sigma, DISTANT_SIGMA["family"]) if unknown else device.sigma
