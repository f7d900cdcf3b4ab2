"""Two ways to exchange gradients: in buckets over all ranks, and unit by unit among sharding ranks."""

import dataclasses

import numpy as np

from platform.cost_model import constants, offload
from platform.cost_model.columns import Array, Columns
from platform.cost_model.engines.base import Load
from platform.cost_model.links import SHARING, Ring, inside

OVERLAP_SLOWDOWN = constants.number("exchange", "OVERLAP_SLOWDOWN")
RING_UNITS = constants.number("exchange", "RING_UNITS")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Gradients of one rank in buckets, which are reduced over all ranks one after the other."""

    ring: Ring
    """All ranks that hold or share the same parameters."""
    owners: Ring
    """The ranks that share one copy of the ZeRO stage's tensors: all ranks, or groups of them."""
    across: Ring
    """The ranks of different groups that own the same part."""
    num_bytes: Array
    """Exchanged bytes of all gradients, after compression."""
    count: Array

    @classmethod
    def of(cls, c: Columns, owned: Array) -> "Buckets":
        """Returns the buckets of a rank's `owned` parameters."""
        num_bytes = owned * c.gradient_bytes * c.compression
        count = np.maximum(np.ceil(num_bytes / np.maximum(c.bucket_bytes, 1.0)), 1.0)
        stride, ranks = inside(c, *SHARING), c.ranks(SHARING)
        return cls(
            ring=Ring.along(c, *SHARING),
            owners=Ring.of(c, c.shard, stride=stride),
            across=Ring.of(c, ranks / c.shard, stride=stride * c.shard),
            num_bytes=num_bytes,
            count=count,
        )

    @property
    def reduced_s(self) -> Array:
        """Seconds to all-reduce all buckets."""
        return self.count * self.ring.all_reduce_s(self.num_bytes / self.count)

    @property
    def scattered_s(self) -> Array:
        """Seconds to reduce-scatter all buckets to their owners; groups of owners then all-reduce each part."""
        bucket = self.num_bytes / self.count
        return self.count * (self.owners.gather_s(bucket) + self.across.all_reduce_s(bucket / self.owners.ranks))


def slowdown(c: Columns, ring: Ring) -> Array:
    """Returns the slowdown of compute during a hidden collective, as a share of the collective's seconds: its channels
    occupy units, and its memory traffic grows with its bytes per second.

    `OVERLAP_SLOWDOWN`, measured on links inside a node, includes both; between nodes fewer bytes move per second. A
    device with few units, such as a CPU core, loses at most `OVERLAP_SLOWDOWN`.
    """
    units = np.minimum(RING_UNITS / c.units, OVERLAP_SLOWDOWN)
    traffic = OVERLAP_SLOWDOWN - units
    return units + traffic * np.minimum(ring.bandwidth / ring.intra_bandwidth, 1.0)


def hidden_share(c: Columns, ring: Ring) -> Array:
    """Returns the saved share of a collective's seconds when it overlaps with compute: all but `slowdown`; 0 if a row
    states that its exchange does not overlap.
    """
    return np.where(c.software.stated_overlap < 0, 0.0, 1 - slowdown(c, ring))


def exposed_s(c: Columns, ring: Ring, seconds: Array, bucket_s: Array, room: Array) -> Array:
    """Returns the exposed seconds of collectives that take `seconds`, with `room` seconds of compute to overlap: the
    part beyond `room`, the last bucket's `bucket_s`, and the slowdown of compute.
    """
    hidden = np.minimum(np.maximum(seconds - bucket_s, 0.0), room)
    return seconds - hidden * hidden_share(c, ring)


def syncs(c: Columns) -> Array:
    """Returns the number of reductions per step: one, or one per micro-step."""
    return np.where(c.sync_every > 0, c.grad_accum, 1.0)


def scattered_s(c: Columns, owned: Array) -> Array:
    """Returns the seconds of ZeRO stages 1 and 2 after the backward pass: gradients are reduce-scattered and updated
    parameters all-gathered in their own type, together as many bytes as an all-reduce (arXiv 1910.02054, section 7.1).
    """
    buckets = Buckets.of(c, owned)
    return syncs(c) * buckets.scattered_s + buckets.owners.gather_s(owned * c.compute_bytes)


def units_s(
    c: Columns,
    load: Load,
    *,
    collectives: float,
    gathers: Array,
    gathers_again: Array,
    near: Array,
    reductions: Array,
    hidden: Array | None,
    stored_bytes: Array,
) -> Array:
    """Returns the exposed seconds per step if units (blocks) are gathered for each pass and their gradients
    reduce-scattered, overlapping with the neighbouring block's compute (arXiv 2304.11277, section 3.3).

    Each exchange takes `collectives` collectives. A micro-step has `gathers` gathers over all ranks that share the
    parameters, `gathers_again` gathers over the `near` ranks that hold them between the passes, and `reductions`
    reductions. Compute hides the share `hidden` of these; None stands for `hidden_share`. A parameter on the host has
    `stored_bytes`.
    """
    stride, per_layer = inside(c, *SHARING), c.rank_block
    unit = Ring.of(c, c.shard, stride=stride)
    gather = collectives * _among_shards_s(c, unit, stride, c.gathered_bytes, collectives)
    gather = gather + offload.parameters_s(c, per_layer / c.shard, stored_bytes)  # loads offloaded parameters first
    # The second gather may stay in a smaller group of neighbours.
    among_few = Ring.of(c, near, stride=stride).gather_s(per_layer * c.gathered_bytes)
    second = np.where(near < c.shard, among_few, gather)
    scatter = collectives * _among_shards_s(c, unit, stride, c.gradient_bytes, collectives)
    reduced, outside = per_layer, load.owned - load.blocks
    if c.has_adapters:
        of_adapters = unit.gather_s(c.adapter_block * c.gradient_bytes)
        scatter = np.where(c.adapter_rank > 0, of_adapters, scatter)
        reduced = np.where(c.adapter_rank > 0, c.adapter_block, per_layer)
    across = Ring.of(c, c.ranks(SHARING) / c.shard, stride=stride * c.shard)
    num_units = load.blocks / per_layer
    talk = num_units * (gathers * gather + gathers_again * second + reductions * scatter)
    # Replicas of shards are reduced on their own links and stream, for which the end of a backward pass waits
    # (torch/distributed/fsdp, `all_reduce_stream`, `finalize_backward`): the last unit's reduction is not hidden.
    replicas = across.all_reduce_s(reduced * c.gradient_bytes / c.shard)
    beside = np.minimum(np.maximum(num_units - 1, 0.0) * replicas, load.backward)
    trained_outside = np.where(c.adapter_rank > 0, 0.0, outside) if c.has_adapters else outside
    gathered = 2 * c.compute_bytes * outside + c.gradient_bytes * trained_outside
    ends = gathered / unit.bandwidth * (c.shard - 1) / c.shard
    ends = ends + across.all_reduce_s(trained_outside * c.gradient_bytes / c.shard)
    near_share, far_share = (hidden_share(c, ring) if hidden is None else hidden for ring in (unit, across))
    apart = num_units * replicas - beside * far_share
    exposed = talk - np.minimum(talk, load.slot) * near_share + reductions * apart + gather + scatter
    return c.grad_accum * exposed + ends


def _among_shards_s(c: Columns, unit: Ring, stride: Array, value_bytes: Array, collectives: float) -> Array:
    """Returns the seconds of one of `collectives` for a block's gather or reduce-scatter. With expert parallelism the
    experts need another collective, among the ranks with the same experts.
    """
    groups = c.parts("experts")
    apart = np.where(groups > 1, c.shared_out / groups, 0.0)
    seconds = unit.gather_s((c.gathered_block - apart) * value_bytes / collectives)
    if not np.any(apart):
        return seconds
    same = Ring.of(c, c.shard / groups, stride=stride * groups)
    return seconds + np.where(apart > 0, same.gather_s(apart * value_bytes / collectives), 0.0)
