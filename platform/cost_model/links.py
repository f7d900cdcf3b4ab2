"""The links that groups of ranks and neighbouring pipeline stages use, and how many of them share a node's ports.

Ranks are numbered along `MESH`; a node has consecutive ranks. The members of a group are `stride` ranks apart, so that
`ranks` x `stride` consecutive ranks form `stride` groups.
"""

import dataclasses

import numpy as np

from platform.cost_model.collectives import all_reduce_s, exchange_s, gather_s, ring_bandwidth
from platform.cost_model.columns import MESH, NUMBERING, Array, Columns, Mask
from trainers.spec.layout_axes import CUTTING


def devices_of(c: Columns) -> Array:
    return c.ranks(NUMBERING)


SHARING = ("dp", *CUTTING["tokens"])
"""Degrees whose ranks hold or share the same parameters."""


def inside(c: Columns, *degrees: str) -> Array:
    """Returns the distance in ranks between neighbouring members of a group along these degrees (neighbours in the
    mesh): the product of the degrees further inside.
    """
    return c.ranks(name for name in reversed(MESH[max(map(MESH.index, degrees)) + 1 :]) if name in NUMBERING)


def spans(c: Columns, *degrees: str) -> Mask:
    """Returns the rows in which a group along these degrees has members in several nodes."""
    return spans_nodes(c, c.ranks(degrees), inside(c, *degrees))


def spans_nodes(c: Columns, ranks: Array, stride: Array | float) -> Mask:
    """Returns the rows with a group in several nodes: `ranks` x `stride` does not divide the ranks of a node."""
    return (ranks > 1) & (devices_of(c) > c.devices_per_node) & (c.devices_per_node / (ranks * stride) % 1 != 0)


def groups_at_a_node(c: Columns, ranks: Array, stride: Array | float) -> Array:
    """Returns the largest number of node-spanning groups with members in one node. A node between two others may have
    the end of one block of groups and the beginning of the next.
    """
    aligned = ranks * stride / c.devices_per_node % 1 == 0
    blocks = np.where(aligned | (devices_of(c) <= 2 * c.devices_per_node), 1.0, 2.0)
    return np.minimum(blocks * stride, c.devices_per_node)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """A group of ranks that communicate with each other, with the figures of its slowest links."""

    ranks: Array
    in_node: Array
    """Number of the group's ranks in one node."""
    bandwidth: Array
    latency: Array
    inter_hop: Array
    intra_bandwidth: Array
    """Bytes per second of one rank inside its node."""

    @classmethod
    def along(cls, c: Columns, *degrees: str) -> "Ring":
        """Returns the ring of a group along these degrees, which are neighbours in the mesh."""
        return cls.of(c, c.ranks(degrees), stride=inside(c, *degrees))

    @classmethod
    def of(cls, c: Columns, ranks: Array, *, stride: Array | float) -> "Ring":
        """Returns the ring of `ranks` that are `stride` ranks apart, next to the other groups of the same kind."""
        spans, groups = spans_nodes(c, ranks, stride), groups_at_a_node(c, ranks, stride)
        return cls(
            ranks=ranks,
            in_node=np.where(spans, np.clip(c.devices_per_node / groups, 1.0, ranks / 2), ranks),
            bandwidth=np.where(
                spans,
                ring_bandwidth(groups, c.intra_bandwidth, c.inter_bandwidth, c.group_bandwidth),
                c.intra_bandwidth,
            ),
            latency=np.where(spans, c.inter_latency, c.intra_latency),
            inter_hop=c.inter_hop,
            intra_bandwidth=c.intra_bandwidth,
        )

    def gather_s(self, num_bytes: Array) -> Array:
        """Returns the seconds of an all-gather or reduce-scatter of `num_bytes` in total."""
        return gather_s(num_bytes, self.ranks, self.in_node, self.bandwidth, self.latency, self.inter_hop)

    def exchange_s(self, num_bytes: Array) -> Array:
        """Returns the seconds of an all-to-all in which each rank sends `num_bytes`, in equal parts to all ranks."""
        return exchange_s(num_bytes, self.ranks, self.in_node, self.intra_bandwidth, self.bandwidth, self.latency)

    def all_reduce_s(self, num_bytes: Array) -> Array:
        return all_reduce_s(num_bytes, self.ranks, self.in_node, self.bandwidth, self.latency, self.inter_hop)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """The boundaries between neighbouring stages of a pipeline: some inside nodes, some between nodes."""

    spans: Mask
    """The rows with boundaries between nodes."""
    share: Array
    """Share of boundaries between nodes, in rows with such boundaries."""
    adjacent: Mask
    """The rows in which a node has two boundaries, of one stage or of two stages that share its ports: all except two
    nodes with one boundary between them. An interleaved schedule also sends from the last stage to the first.
    """
    bandwidth: Array
    """Bytes per second of one rank across a boundary between nodes. All senders of a node share its ports; there are at
    most as many senders as ranks in a stage.
    """

    @classmethod
    def of(cls, c: Columns) -> "Boundaries":
        """Returns the boundaries of each row. An interleaved schedule also sends from the last stage to the first."""
        width, per_node = inside(c, *CUTTING["depth"]), c.devices_per_node
        nodes, around = np.ceil(devices_of(c) / per_node), np.where(c.axes["virtual"] > 1, 1.0, 0.0)
        # If nodes end within stages, there are two boundaries around each end.
        fits = per_node / width % 1 == 0
        ends = (nodes - 1) * np.where(fits, 1.0, 2.0)
        inner = c.parts("depth") - 1
        between = np.where(width >= per_node, inner, np.minimum(ends, inner)) + around
        senders = np.minimum(width, per_node)
        return cls(
            spans=c.is_piped & (nodes > 1),
            share=between / np.maximum(inner + around, 1.0),
            adjacent=(inner + around > 1) & ((nodes > 2) | ~fits | (around > 0)),
            bandwidth=ring_bandwidth(senders, c.intra_bandwidth, c.inter_bandwidth, c.group_bandwidth),
        )
