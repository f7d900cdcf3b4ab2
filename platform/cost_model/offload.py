"""What crosses between a device and its host where states lie there: parameters for each pass, gradients, the step."""

import numpy as np

from platform.cost_model.columns import DEEPSPEED, FSDP, Array, Columns

LINK_SHARE = 0.75
"""Of the link to the host by the datasheet, what copies to pinned memory reach: 12 GB/s of PCIe 3's 16 (ZeRO-Offload,
arXiv 2101.06840, section 4)."""
HOST_ADAM = 1e9
"""Parameters a second and device that Adam steps on the host (ZeRO-Offload, section 5; 0.9 to 1.6e9 with all around it
on the hosts of two H200 with 16 cores each, this project)."""
HOST_SUMS = 1.55e9
"""Bytes a second of gradients that FSDP2 adds to what lies on the host. From its second micro-step on torch copies each
to new pageable memory and waits (`_fsdp_collectives.py`, `foreach_reduce`). One host, this project: 9.1 s for 3.5e9."""


def parameters_s(c: Columns, parameters: Array) -> Array:
    """Seconds to bring `parameters` of a rank up: FSDP2's as they are stored, DeepSpeed's in the products' type."""
    stored = np.where(c.engine == FSDP, c.state_bytes, c.compute_bytes)
    return np.where(c.parameters_on_host > 0, parameters * stored / c.host_bandwidth, 0.0)


def gradients_s(c: Columns, owned: Array) -> Array:
    """Seconds a step in which the gradients of the `owned` parameters of a rank go down at every micro-step.

    ZeRO-3 keeps its sums on the host and brings each up to add to it (`stage3.py`, `partition_grads`). Stages 1 and 2
    sum on the device, and so does FSDP2 that synchronises last; what goes down at the end is the optimizer's.
    """
    down = owned * c.gradient_bytes / c.host_bandwidth
    again = c.grad_accum - 1
    zero_3 = (c.engine == DEEPSPEED) & (c.zero_stage == 3) & (c.states_on_host > 0)
    fsdp = (c.engine == FSDP) & (c.sync_every > 0) & (c.parameters_on_host > 0)
    summed = np.where(fsdp, down + owned * c.gradient_bytes / HOST_SUMS, 0.0)
    return again * np.where(zero_3, 2 * down, summed)


def optimizer_s(c: Columns, parameters: Array) -> Array:
    """Seconds of the optimizer step over `parameters` of a rank on its host: gradients down, parameters up, Adam."""
    return parameters * (c.gradient_bytes + c.compute_bytes) / c.host_bandwidth + parameters / HOST_ADAM
