"""Two ways in which engines exchange gradients: in buckets over all ranks, and unit by unit among sharding ranks."""

import dataclasses

import numpy as np

from platform.cost_model import constants, offload
from platform.cost_model.columns import Array, Columns
from platform.cost_model.engines.base import Load
from platform.cost_model.links import SHARING, Ring, inside

OVERLAP_SLOWDOWN = constants.number("exchange", "OVERLAP_SLOWDOWN")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Gradients of one rank, split into buckets that are reduced over all ranks, one after the other."""

    ring: Ring
    num_bytes: Array
    """Exchanged bytes of all gradients, after compression."""
    count: Array

    @classmethod
    def of(cls, c: Columns, owned: Array) -> "Buckets":
        """Returns the buckets of a rank's `owned` parameters."""
        num_bytes = owned * c.gradient_bytes * c.compression
        count = np.maximum(np.ceil(num_bytes / np.maximum(c.bucket_bytes, 1.0)), 1.0)
        return cls(ring=Ring.along(c, *SHARING), num_bytes=num_bytes, count=count)

    @property
    def reduced_s(self) -> Array:
        """Seconds to all-reduce all buckets."""
        return self.count * self.ring.all_reduce_s(self.num_bytes / self.count)

    @property
    def scattered_s(self) -> Array:
        """Seconds to reduce-scatter all buckets to the ranks that own their parts."""
        return self.count * self.ring.gather_s(self.num_bytes / self.count)


def syncs(c: Columns) -> Array:
    """Counts the reductions per step: one, or one for each micro-step."""
    return np.where(c.sync_every > 0, c.grad_accum, 1.0)


def scattered_s(c: Columns, owned: Array) -> Array:
    """Returns the seconds of stage 1 and 2 of ZeRO after the backward pass: gradients are reduce-scattered, updated
    parameters all-gathered in their own type, together as many bytes as an all-reduce (arXiv 1910.02054, section 7.1).
    """
    buckets = Buckets.of(c, owned)
    return syncs(c) * buckets.scattered_s + buckets.ring.gather_s(owned * c.compute_bytes)


def units_s(
    c: Columns,
    load: Load,
    *,
    collectives: float,
    gathers: Array,
    gathers_again: Array,
    near: Array,
    reductions: Array,
    hidden: Array,
    stored_bytes: Array,
) -> Array:
    """Returns the exposed seconds per step where units (blocks) are gathered for each pass and their gradients
    reduce-scattered, overlapping with the compute of the neighbouring block (arXiv 2304.11277, section 3.3).

    Each exchange takes `collectives` collectives. A micro-step has `gathers` gathers over all ranks that share the
    parameters, `gathers_again` gathers over the `near` ranks that hold them between the passes, and `reductions`
    reductions. Compute hides the share `hidden` of these. A parameter on the host has `stored_bytes`.
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
    reduction = scatter + across.all_reduce_s(reduced * c.gradient_bytes / c.shard)
    talk = load.blocks / per_layer * (gathers * gather + gathers_again * second + reductions * reduction)
    trained_outside = np.where(c.adapter_rank > 0, 0.0, outside) if c.has_adapters else outside
    gathered = 2 * c.compute_bytes * outside + c.gradient_bytes * trained_outside
    ends = gathered / unit.bandwidth * (c.shard - 1) / c.shard
    ends = ends + across.all_reduce_s(trained_outside * c.gradient_bytes / c.shard)
    exposed = talk - np.minimum(talk, load.slot) * hidden + gather + scatter
    return c.grad_accum * exposed + ends


def _among_shards_s(c: Columns, unit: Ring, stride: Array, value_bytes: Array, collectives: float) -> Array:
    """Returns the seconds of a block's gather or reduce-scatter, one of `collectives`: of experts that ranks share out
    it is one of its own, among the ranks that have the same ones.
    """
    groups = c.parts("experts")
    apart = np.where(groups > 1, c.shared_out / groups, 0.0)
    seconds = unit.gather_s((c.gathered_block - apart) * value_bytes / collectives)
    if not np.any(apart):
        return seconds
    same = Ring.of(c, c.shard / groups, stride=stride * groups)
    return seconds + np.where(apart > 0, same.gather_s(apart * value_bytes / collectives), 0.0)
