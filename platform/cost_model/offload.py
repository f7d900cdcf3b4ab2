"""Traffic between a device and its host for states in host memory: parameters, gradients, the optimizer step."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns

LINK_SHARE = constants.number("offload", "LINK_SHARE")
HOST_ADAM = constants.number("offload", "HOST_ADAM")
HOST_SUMS = constants.number("offload", "HOST_SUMS")


def parameters_s(c: Columns, parameters: Array, stored_bytes: Array) -> Array:
    """Returns the seconds to copy `parameters` of a rank to the device, `stored_bytes` each."""
    return np.where(c.parameters_on_host > 0, parameters * stored_bytes / c.host_bandwidth, 0.0)


def optimizer_s(c: Columns, parameters: Array) -> Array:
    """Returns the seconds of the optimizer step over `parameters` of a rank on its host: gradients to the host, Adam,
    parameters to the device.
    """
    return parameters * (c.gradient_bytes + c.compute_bytes) / c.host_bandwidth + parameters / HOST_ADAM
