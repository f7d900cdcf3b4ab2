"""What crosses between a device and its host where states lie there: parameters for each pass, gradients, the step."""

import numpy as np

from platform.cost_model.columns import Array, Columns

LINK_SHARE = 0.75
"""Of the link to the host by the datasheet, what copies to pinned memory reach: 12 GB/s of PCIe 3's 16 (ZeRO-Offload,
arXiv 2101.06840, section 4)."""
HOST_ADAM = 1e9
"""Parameters a second and device that Adam steps on the host (ZeRO-Offload, section 5; 0.9 to 1.6e9 with all around it
on the hosts of two H200 with 16 cores each, this project)."""
HOST_SUMS = 1.55e9
"""Bytes a second of gradients that FSDP2 adds to what lies on the host. From its second micro-step on torch copies each
to new pageable memory and waits (`_fsdp_collectives.py`, `foreach_reduce`). One host, this project: 9.1 s for 3.5e9."""


def parameters_s(c: Columns, parameters: Array, stored_bytes: Array) -> Array:
    """Seconds to bring `parameters` of a rank up, each stored in so many bytes."""
    return np.where(c.parameters_on_host > 0, parameters * stored_bytes / c.host_bandwidth, 0.0)


def optimizer_s(c: Columns, parameters: Array) -> Array:
    """Seconds of the optimizer step over `parameters` of a rank on its host: gradients down, parameters up, Adam."""
    return parameters * (c.gradient_bytes + c.compute_bytes) / c.host_bandwidth + parameters / HOST_ADAM
