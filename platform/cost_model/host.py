"""Host seconds: kernel launches, hooks, checkpoints, a pipeline's instructions, the optimizer's step."""

import numpy as np

from platform.cost_model import adapters, constants
from platform.cost_model.columns import Array, Columns
from platform.cost_model.engines import costs_of
from platform.cost_model.links import devices_of

LAUNCH_S = constants.number("host", "LAUNCH_S")
BLOCKED_LAUNCH_S = constants.number("host", "BLOCKED_LAUNCH_S")
FUSED_LAUNCHES = constants.number("host", "FUSED_LAUNCHES")
EAGER_LAUNCHES = constants.number("host", "EAGER_LAUNCHES")
MODULE_LAUNCH_S = constants.number("host", "MODULE_LAUNCH_S")
MODULE_BACKWARD_S = constants.number("host", "MODULE_BACKWARD_S")
COMPILED_CALL_S = constants.number("host", "COMPILED_CALL_S")
COUNTED_SIGMA = constants.number("host", "COUNTED_SIGMA")
CHECKPOINT_HOST_S = constants.number("host", "CHECKPOINT_HOST_S")
SHARPNESS = constants.number("host", "SHARPNESS")


def host_layer_s(columns: Columns, further_launches: Array | float = 0.0) -> tuple[Array, Array, Array]:
    """Returns the host seconds (forward, backward, a checkpoint's second forward) of one block's kernels and hooks, the
    lower limit for small micro-batches. A replayed graph takes almost no host time. `further_launches` depends on the
    kind of block.
    """
    c, software = columns, columns.software
    launched = np.where(costs_of(c).replays(c), 0.0, 1.0)
    launches = np.where(c.fused > 0, FUSED_LAUNCHES, EAGER_LAUNCHES) + further_launches
    launch_s = np.where(software.blocking > 0, BLOCKED_LAUNCH_S, LAUNCH_S)
    kernels = launches * launch_s + c.compiled_calls * COMPILED_CALL_S
    hooks = costs_of(c).hooks(c)
    # A stack's modules that are fused by hand and not compiled take the same host time at every width; two collectives
    # per pass wait for the slowest rank's host.
    by_stack = (software.block_host > 0) & (software.blocking == 0)
    ranks = c.parts("width")
    over_nodes = c.is_piped & (ranks > 1) & (devices_of(c) > c.devices_per_node)
    skew = 2 * (software.host_skew * np.log2(ranks) + np.where(over_nodes, software.host_pipe * ranks, 0.0))
    of_adapters, of_adapters_backward = adapters.host_s(c)
    forward = np.where(by_stack, software.block_host + skew, kernels + of_adapters)
    backward = np.where(by_stack, software.block_host_backward + skew, 2 * kernels + of_adapters_backward)
    # a compiled block contains its checkpoint
    again = forward + hooks.again + np.where(c.fused > 0, 0.0, CHECKPOINT_HOST_S)
    return launched * (forward + hooks.forward), launched * (backward + hooks.backward), launched * again


def host_step_s(columns: Columns) -> Array:
    engine = costs_of(columns)
    stepping = np.where(engine.wraps_optimizer(columns), 2.0, 1.0) * columns.software.step_host
    return stepping + engine.step_host_s(columns)


def together_s(host: Array, device: Array, sharpness: Array | float = SHARPNESS) -> Array:
    """Returns the seconds of overlapping host and device work: the norm of order `sharpness` of the two times."""
    return (host**sharpness + device**sharpness) ** (1 / sharpness)


def pace_share(device: Array, together: Array, sharpness: Array | float = SHARPNESS) -> Array:
    """Returns the logarithmic derivative of `together_s` with respect to the host's time."""
    return 1 - (device / together) ** sharpness
