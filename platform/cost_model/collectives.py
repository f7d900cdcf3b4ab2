"""Seconds of collectives by latency and bandwidth (the alpha-beta model) over two levels of links.

Sources: NCCL's ring and tree algorithms and "bus bandwidth": nccl-tests, doc/PERFORMANCE.md; the alpha-beta model:
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), sections 4.1, 4.5.
"""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array

INTRA_HOP_S = constants.number("collectives", "INTRA_HOP_S")
INTER_HOP_S = constants.number("collectives", "INTER_HOP_S")
FILL = constants.number("collectives", "FILL")
FILL_BYTES = constants.number("collectives", "FILL_BYTES")


def _fill_s(num_bytes: Array, latency: Array) -> Array:
    return FILL * latency * num_bytes / (num_bytes + FILL_BYTES)


def ring_bandwidth(groups: Array, intra_bandwidth: Array, inter_bandwidth: Array, group_bandwidth: Array) -> Array:
    """Returns the bytes per second of one rank in a ring across nodes.

    `groups` of the same kind in a node communicate at the same time: each has its share of the node's ports (arXiv
    2104.04473, section 3.3.2), and at most the bandwidth that a single group reaches. Inside the node a rank is limited
    by its link.
    """
    return np.minimum(intra_bandwidth, np.minimum(inter_bandwidth / groups, group_bandwidth))


def gather_s(
    num_bytes: Array,
    ranks: Array,
    ranks_per_node: Array,
    bandwidth: Array,
    latency: Array,
    inter_hop: Array,
) -> Array:
    """Returns the seconds of an all-gather or reduce-scatter of `num_bytes` (the whole tensor) over a ring: (n-1)/n of
    the bytes pass each link.
    """
    steps = ranks - 1
    hops = steps / np.maximum(ranks_per_node, 1)
    wait = latency + (steps - hops) * INTRA_HOP_S + np.where(ranks > ranks_per_node, hops * inter_hop, 0.0)
    wait = wait + _fill_s(num_bytes, latency)
    return np.where(ranks > 1, wait + num_bytes * steps / ranks / bandwidth, 0.0)


def all_reduce_s(
    num_bytes: Array, ranks: Array, ranks_per_node: Array, bandwidth: Array, latency: Array, inter_hop: Array
) -> Array:
    """Returns the seconds of an all-reduce of `num_bytes`: 2 (n-1)/n of the bytes pass each link; between nodes the
    latency grows with the depth of a tree.
    """
    steps = ranks - 1
    nodes = np.maximum(ranks / np.maximum(ranks_per_node, 1), 1.0)
    wait = latency + 2 * (np.minimum(ranks, ranks_per_node) - 1) * INTRA_HOP_S + 2 * np.log2(nodes) * inter_hop
    wait = wait + _fill_s(num_bytes, latency)
    return np.where(ranks > 1, wait + 2 * num_bytes * steps / ranks / bandwidth, 0.0)


def exchange_s(
    num_bytes: Array,
    ranks: Array,
    ranks_per_node: Array,
    intra_bandwidth: Array,
    inter_bandwidth: Array,
    latency: Array,
) -> Array:
    """Returns the seconds of an all-to-all in which each rank sends `num_bytes`, in equal parts to all ranks including
    itself.

    `inter_bandwidth` is the bandwidth between nodes that the group's ranks in one node share, because they send at the
    same time.
    """
    near, far = (ranks_per_node - 1) / ranks, (ranks - ranks_per_node) / ranks
    sent = num_bytes * np.maximum(near / intra_bandwidth, far * ranks_per_node / inter_bandwidth)
    return np.where(ranks > 1, latency + _fill_s(num_bytes, latency) + sent, 0.0)
