"""Traffic between a device and its host for states in host memory: parameters, gradients, the optimizer step; and the
device's buffers for it.
"""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns
from trainers.spec.host_moments import LEAST_SLICES, SLICE_VALUES, STAGED_SLICES

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


def streamed_s(c: Columns, parameters: Array, update_s: Array) -> Array:
    """Returns the seconds of the optimizer step over `parameters` of a rank whose moments pass through the device. The
    update of `update_s` seconds and the copies in both directions run at once, except for the first slice's copy to the
    device and the last one's back.
    """
    seconds_each = c.moments * c.state_bytes / c.host_bandwidth
    return np.maximum(update_s, parameters * seconds_each) + 2 * _slice_values(parameters) * seconds_each


def staging_bytes(c: Columns, parameters: Array) -> Array:
    """Returns the bytes of the device's buffers for moments that pass through the step over `parameters` of a rank."""
    staged = STAGED_SLICES * _slice_values(parameters) * c.moments * c.state_bytes
    return np.where(c.moments_on_host > 0, staged, 0.0)


def _slice_values(parameters: Array) -> Array:
    return np.minimum(SLICE_VALUES, parameters / LEAST_SLICES)
