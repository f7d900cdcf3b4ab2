"""Megatron-LM's data parallelism in published runs: 16-bit weights, fp32 masters, gradients reduced at the end."""

import dataclasses

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.engines.base import NOTHING, Certain, EngineCosts, Load, PerParameter
from platform.cost_model.engines.exchange import Buckets, exposed_s, syncs
from platform.cost_model.links import SHARING
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

LAUNCH_S = constants.number("host", "LAUNCH_S")
BACKWARD_SHARE = constants.number("megatron", "BACKWARD_SHARE")
BLOCK_TENSORS = constants.number("megatron", "BLOCK_TENSORS")
BUCKET_PARAMETERS = constants.number("megatron", "BUCKET_PARAMETERS")


class Megatron(EngineCosts):
    """Megatron-LM's DDP at stage 0, its distributed optimizer at stage 1."""

    def bucket_bytes(self, state_bytes: float, compute_bytes: float) -> float:
        """Returns the bytes of 4e7 parameters (`ddp_bucket_size`)."""
        return 4e7 * state_bytes

    def stops_early(self, c: Columns) -> Mask:
        """Returns False for all rows: Megatron-LM's checkpoint recomputes the whole block."""
        return np.zeros((), dtype=bool)

    def per_parameter(self, c: Columns) -> PerParameter:
        """Returns the bytes of weights in the products' type, of masters and states (sharded from stage 1 on) and of
        gradients (sharded from stage 2 on). If hooks reduce gradients, stage 0 holds torch's buckets in addition to the
        gradients (`reducer.cpp`, unless `gradient_as_bucket_view`).
        """
        sb, cb, on_device = c.state_bytes, c.compute_bytes, 1.0 - c.states_on_host
        zero_1, zero_2, zero_3 = (np.where(c.zero_stage >= stage, c.shard, 1.0) for stage in (1, 2, 3))
        masters = np.where(sb > cb, sb, 0.0)
        summed = np.maximum(c.gradient_bytes, cb)
        # In addition to the current micro-batch's low-precision gradients there are unsharded sums in a wider type.
        beside = (summed > cb) & (c.zero_stage <= 1)
        gradients = summed / zero_2 + np.where(beside, cb, 0.0)
        in_buckets = (c.software.reduces_by_hooks > 0) & (c.zero_stage == 0) & (c.ranks(SHARING) > 1)
        return PerParameter(
            resident=cb / zero_3 * (1 - c.parameters_on_host)
            + (masters + sb * c.moments) / zero_1 * on_device
            + np.where(in_buckets, cb, 0.0),
            held_gradients=np.where((c.grad_accum > 1) | beside, gradients, 0.0),
            final_gradients=gradients * on_device,
            step_copies=NOTHING,
        )

    def data_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds per step: gradients are all-reduced, or reduce-scattered and the updated
        parameters gathered.

        A stack with overlap reduces bucket by bucket during the last micro-step's backward pass
        (megatron/core/distributed, `overlap_grad_reduce`) and gathers during the next step's first forward pass
        (`overlap_param_gather`); other stacks do both after the backward pass.

        If hooks reduce gradients, stage 0 all-reduces buckets during the last backward pass. From stage 1 on, one
        all-reduce of all gradients follows the backward pass, and the gathered parameters are copied tensor by tensor
        for each rank's part.
        """
        buckets, software = Buckets.of(c, load.owned), c.software
        backward = BACKWARD_SHARE * load.slot
        after = self._reduced_s(c, load, backward) + np.where(c.zero_stage >= 1, self._gathered_s(c, load), 0.0)
        if not np.any(software.reduces_by_hooks):
            return after
        gathered = buckets.owners.gather_s(load.owned * c.compute_bytes)
        beside = exposed_s(c, buckets.ring, buckets.reduced_s, NOTHING, backward)
        pieces = BLOCK_TENSORS * load.blocks / c.rank_block * buckets.ring.ranks
        at_once = buckets.ring.all_reduce_s(buckets.num_bytes) + gathered + pieces * LAUNCH_S
        sums_all = (c.zero_stage >= 1) & (software.overlaps_reduction == 0)  # unless a row states overlap
        by_hooks = np.where(c.zero_stage >= 1, after, beside)
        return np.where(software.reduces_by_hooks > 0, np.where(sums_all, at_once, by_hooks), after)

    def _reduced_s(self, c: Columns, load: Load, backward: Array) -> Array:
        """Returns the exposed seconds per step of reducing gradients."""
        all_reduced, overlaps = c.software.all_reduced_bytes, c.software.overlaps_reduction > 0
        buckets = _buckets(c, load.owned)
        count = np.where(overlaps, buckets.count, 1.0)
        at_once = count * buckets.ring.all_reduce_s(load.owned * all_reduced / count)
        scattered = np.where(all_reduced > 0, at_once, buckets.scattered_s)
        reduced = np.where(c.zero_stage >= 1, scattered, buckets.reduced_s)
        beside = exposed_s(c, buckets.ring, reduced, reduced / buckets.count, backward)
        times = np.where((c.zero_stage >= 1) & (all_reduced > 0), 1.0, syncs(c))
        return (times - 1) * reduced + np.where(overlaps, beside, reduced)

    def _gathered_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds per step of gathering parameters after the optimizer's step: in one gather, in
        buckets for which the next forward pass waits in turn, or by a broadcast from each owner.
        """
        buckets, num_bytes = _buckets(c, load.owned), load.owned * c.compute_bytes
        overlaps = c.software.overlaps_gather > 0
        parts = np.where(overlaps, buckets.count, 1.0)
        parts = np.where(c.software.broadcasts_parts > 0, c.shard, parts)
        seconds = parts * buckets.owners.gather_s(num_bytes / parts)
        ahead = exposed_s(c, buckets.owners, seconds, seconds / parts, (1 - BACKWARD_SHARE) * load.slot)
        return np.where(overlaps, ahead, seconds)

    def certain(self, recipe: Recipe, layout: Layout, batch: BatchPoint) -> Certain:
        """Returns zeros: no layout of a search uses this engine."""
        return Certain()


def _buckets(c: Columns, owned: Array) -> Buckets:
    """Returns the buckets of gradients. The size of overlapped buckets grows with the ranks, to limit the effect of
    latency, unless the size is stated.
    """
    largest = np.maximum(c.bucket_bytes, BUCKET_PARAMETERS * c.ranks(SHARING) * c.gradient_bytes)
    grows = (c.software.overlaps_reduction > 0) & (c.software.fixed_buckets == 0)
    size = np.where(grows, largest, c.bucket_bytes)
    return Buckets.of(dataclasses.replace(c, bucket_bytes=size), owned)


COSTS = Megatron()
