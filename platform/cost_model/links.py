"""The links that groups of ranks and neighbouring pipeline stages use, and how many of them share a node's ports.

Ranks are numbered along `MESH`; a node has consecutive ranks. The members of a group are `stride` ranks apart, so
`ranks` x `stride` consecutive ranks are `stride` groups.
"""

import dataclasses

import numpy as np

from platform.cost_model.collectives import all_reduce_s, exchange_s, gather_s, ring_bandwidth
from platform.cost_model.columns import MESH, NUMBERING, Array, Columns, Mask
from trainers.spec.layout_axes import CUTTING


def devices_of(c: Columns) -> Array:
    """Returns the number of all ranks."""
    return c.ranks(NUMBERING)


SHARING = ("dp", *CUTTING["tokens"])
"""Degrees whose ranks hold the same parameters, or share them out."""


def inside(c: Columns, *degrees: str) -> Array:
    """Returns how many ranks the members of a group along these degrees, which are neighbours in the mesh, are apart:
    as many as the degrees further inside have.
    """
    return c.ranks(name for name in reversed(MESH[max(map(MESH.index, degrees)) + 1 :]) if name in NUMBERING)


def spans(c: Columns, *degrees: str) -> Mask:
    """Returns the rows in which at least one of the groups along these degrees has members in several nodes."""
    return spans_nodes(c, c.ranks(degrees), inside(c, *degrees))


def spans_nodes(c: Columns, ranks: Array, stride: Array | float) -> Mask:
    """Returns the rows in which at least one of the groups has members in several nodes: the ranks of a node are not a
    whole number of groups' blocks.
    """
    return (ranks > 1) & (devices_of(c) > c.devices_per_node) & (c.devices_per_node / (ranks * stride) % 1 != 0)


def groups_at_a_node(c: Columns, ranks: Array, stride: Array | float) -> Array:
    """Returns the number of groups, of those that span nodes, that have members in the same node, for the node with
    most: a node between two others may have the end of one block and the beginning of the next.
    """
    aligned = ranks * stride / c.devices_per_node % 1 == 0
    blocks = np.where(aligned | (devices_of(c) <= 2 * c.devices_per_node), 1.0, 2.0)
    return np.minimum(blocks * stride, c.devices_per_node)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """A group of ranks that communicate with each other, with the figures of the slowest of their links."""

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
        """Returns the ring of `ranks` that are `stride` ranks apart, beside the other groups of that kind."""
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
        """Returns the seconds of an all-to-all in which each rank sends `num_bytes`, as many to each rank."""
        return exchange_s(num_bytes, self.ranks, self.in_node, self.intra_bandwidth, self.bandwidth, self.latency)

    def all_reduce_s(self, num_bytes: Array) -> Array:
        """Returns the seconds of an all-reduce of `num_bytes`."""
        return all_reduce_s(num_bytes, self.ranks, self.in_node, self.bandwidth, self.latency, self.inter_hop)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """The boundaries between neighbouring stages of a pipeline: some inside nodes, some between nodes."""

    spans: Mask
    """The rows with boundaries between nodes."""
    share: Array
    """Share of the boundaries that lie between nodes, in those rows."""
    adjacent: Mask
    """The rows in which two boundaries lie around some node, of one stage or of two that share its ports: all but two
    nodes that are joined by one. An interleaved schedule sends from the last stage to the first too.
    """
    bandwidth: Array
    """Bytes per second of one rank across a boundary between nodes. All senders of a node share its ports; they are at
    most as many as a stage has ranks, of however many stages.
    """

    @classmethod
    def of(cls, c: Columns) -> "Boundaries":
        """Returns the boundaries of each row. An interleaved schedule sends from the last stage to the first too."""
        width, per_node = inside(c, *CUTTING["depth"]), c.devices_per_node
        nodes, around = np.ceil(devices_of(c) / per_node), np.where(c.axes["virtual"] > 1, 1.0, 0.0)
        # Where nodes end within stages, two boundaries lie around each end.
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
