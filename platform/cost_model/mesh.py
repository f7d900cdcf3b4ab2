"""What tensor, pipeline and context parallelism cost, whatever the engine; and the rings that ranks communicate in."""

import dataclasses

import numpy as np

from platform.cost_model.collectives import all_reduce_s, gather_s, ring_bandwidth
from platform.cost_model.columns import Array, Columns, Mask


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """Ranks that communicate with each other alone, with what links them."""

    ranks: Array
    in_node: Array
    """Of them, those in one node."""
    bandwidth: Array
    latency: Array
    inter_hop: Array

    @classmethod
    def of(cls, c: Columns, ranks: Array, in_node: Array) -> "Ring":
        """The ring of `ranks`, of which `in_node` share a node of the cluster."""
        return cls(
            ranks=ranks,
            in_node=in_node,
            bandwidth=ring_bandwidth(
                ranks, in_node, c.devices_per_node, c.intra_bandwidth, c.inter_bandwidth, c.group_bandwidth
            ),
            latency=np.where(ranks > in_node, c.inter_latency, c.intra_latency),
            inter_hop=c.inter_hop,
        )

    def gather_s(self, num_bytes: Array) -> Array:
        """Seconds of an all-gather or reduce-scatter of so many bytes in all."""
        return gather_s(num_bytes, self.ranks, self.in_node, self.bandwidth, self.latency, self.inter_hop)

    def all_reduce_s(self, num_bytes: Array) -> Array:
        """Seconds of an all-reduce of so many bytes."""
        return all_reduce_s(num_bytes, self.ranks, self.in_node, self.bandwidth, self.latency, self.inter_hop)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Blocks of pipeline stages: DeepSpeed and Megatron-LM cut blocks evenly, or count embedding and head as blocks."""

    largest: Array
    """Blocks of the largest stage."""
    first: Array
    last: Array


def stages_of(columns: Columns) -> Stages:
    """Even cuts where the pipeline degree divides the blocks; else embedding and head count as one block each, where
    that makes it even (DeepSpeed's `partition_method="type:transformer|embedding"`); else the rest goes to some.
    """
    layers, pp = columns.layers, columns.pp
    even = layers % pp == 0
    with_ends = ~even & ((layers + 2) % pp == 0)
    largest = np.where(with_ends, (layers + 2) / pp, np.ceil(layers / pp))
    ends = np.where(with_ends, (layers + 2) / pp - 1, np.where(even, layers / pp, np.floor(layers / pp)))
    # By arithmetic the head, a product of the vocabulary's width, counts as several blocks of the last stage.
    head = columns.table_parameters / columns.layer_parameters
    share = np.ceil((layers + head) / pp)
    by_cost = (columns.cuts_by_cost > 0) & (pp > 1)
    first = np.where(by_cost, np.minimum(share, layers), ends)
    last = np.where(by_cost, np.maximum(layers - share * (pp - 1), 0.0), ends)
    largest = np.where(by_cost, first, largest)
    return Stages(largest=np.where(pp == 1, layers, largest), first=first, last=last)


def rank_parameters(columns: Columns, stages: Stages) -> tuple[Array, Array]:
    """Parameters (of the largest rank, of its blocks alone): the first stage has the embedding, the last the head.

    A tied table lies on both ends of a pipeline.
    """
    c = columns
    blocks = stages.largest * c.layer_parameters / c.tp
    whole = (c.layers * c.layer_parameters + c.embedding_parameters) / c.tp
    ends = (
        stages.first * c.layer_parameters / c.tp
        + np.where(c.tied > 0, c.embedding_parameters, c.embedding_parameters - c.table_parameters) / c.tp
    )
    return np.where(c.pp > 1, np.maximum(blocks, ends), whole), np.where(
        c.pp > 1, blocks, c.layers * c.layer_parameters / c.tp
    )


def data_ring(c: Columns) -> Ring:
    """The ranks that hold the same parameters before anything is sharded, those of context parallelism included."""
    ranks = c.dp * c.cp
    return Ring.of(c, ranks, np.clip(np.floor(c.devices_per_node / c.tp), 1, ranks))


def _tensor_ring(c: Columns) -> Ring:
    """Tensor-parallel ranks are innermost in the mesh, so within a node while they fit."""
    return Ring.of(c, c.tp, np.minimum(c.tp, c.devices_per_node))


def tensor_s(c: Columns, boundary: Array, full: Mask) -> Array:
    """Tensor-parallel collectives of one block and micro-batch: two all-reduces of the residual a pass (Megatron-LM,
    arXiv 1909.08053, section 3); with sequence parallelism as much in gathers and scatters (arXiv 2205.05198, 4.2.2),
    which between nodes go round the whole ring, where an all-reduce may go by a tree. They wait for compute and compute
    waits for them, but for what a stack overlaps.
    """
    ring = _tensor_ring(c)
    reduced = ring.all_reduce_s(boundary)
    around = (c.sequence_parallel > 0) & (c.tp > ring.in_node)
    each = np.where(around, np.maximum(2 * ring.gather_s(boundary), reduced), reduced)
    return each * np.where(full, 6.0, 4.0) * (1 - c.tensor_overlap)


def context_s(c: Columns, tokens: Array) -> Array:
    """Context parallelism: keys and values pass a ring each pass, as far as attention does not hide them; a third
    pass returns their gradients (Ring Attention, arXiv 2310.01889, section 3). Half is taken for hidden."""
    ring = Ring.of(c, c.cp, np.clip(c.devices_per_node / c.tp, 1, c.cp))
    volume = tokens * (c.cp - 1) * 2 * c.kv_width / c.tp * c.compute_bytes
    return np.where(c.cp > 1, 0.5 * 3 * volume / ring.bandwidth, 0.0)


def send_s(c: Columns, boundary: Array) -> Array:
    """One stage's output to the next. Every device of a node sends at once through the node's ports. Megatron-LM and
    DeepSpeed send each value once and gather it within the tensor-parallel group (arXiv 2104.04473, section 4.1;
    `pipe/engine.py`, `pipe_partitioned`), which sequence parallelism spares. Both wait for the transfer.
    """
    across = c.tp * c.cp * c.dp >= c.devices_per_node
    per_device = np.where(across, c.inter_bandwidth / c.devices_per_node, c.intra_bandwidth)
    latency = np.where(across, c.inter_latency, c.intra_latency)
    ring = _tensor_ring(c)
    gathered = gather_s(boundary, ring.ranks, ring.in_node, ring.bandwidth, c.intra_latency, c.inter_hop)
    return latency + boundary / c.tp / per_device + np.where(c.sequence_parallel > 0, 0.0, gathered)
