"""DeepSpeed ZeRO, stages 0 to 3, and its pipeline. File names refer to the `runtime` folder of DeepSpeed's code."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share, code_of
from platform.cost_model.engines import gathering
from platform.cost_model.engines.autocast import autocast_cache, autocast_certain, cast_traffic, head_cast
from platform.cost_model.engines.base import Certain, Copies, EngineCosts, HookCosts, Load, PerParameter, Sizes
from platform.cost_model.engines.exchange import Buckets, hidden_share, syncs, units_s
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

GRADIENT_HOST_S = constants.number("deepspeed", "GRADIENT_HOST_S")
GATHER_HOST_S = constants.number("deepspeed", "GATHER_HOST_S")
INSTRUCTIONS_S = constants.number("deepspeed", "INSTRUCTIONS_S")
SUB_GROUP = constants.number("deepspeed", "SUB_GROUP")
ZERO_3_GATHERS = constants.number("deepspeed", "ZERO_3_GATHERS")
ZERO_3_SIGMA = constants.number("deepspeed", "ZERO_3_SIGMA")
_ON, _OFF = (code_of("overlap", word) for word in ("on", "off"))


class DeepSpeed(EngineCosts):
    """`deepspeed.initialize`. Stage 0 with gradient sums in the states' type computes like DDP, with autocast."""

    def bucket_bytes(self, state_bytes: float, compute_bytes: float) -> float:
        """Returns the bytes of 5e8 elements (`reduce_bucket_size`)."""
        return 5e8 * compute_bytes

    def wraps_optimizer(self, c: Columns) -> Mask:
        """Returns all rows except stage 0 with sums in the states' type, which uses torch's optimizer. In published
        runs stage 0 holds 16-bit weights in addition to the masters.
        """
        return ~((c.zero_stage == 0) & (c.parts("depth") == 1) & (c.gradient_bytes >= c.state_bytes))

    def autocasts(self, c: Columns) -> Mask:
        """Returns the rows with torch's optimizer and products in a narrower type than the states."""
        return (c.compute_bytes < c.state_bytes) & ~self.wraps_optimizer(c)

    def stops_early(self, c: Columns) -> Mask:
        """Returns the rows under torch's checkpoint. The pipeline's checkpoint, and stacks before fused attention,
        recompute the whole block.
        """
        return (c.parts("width") * c.parts("depth") == 1) & (c.flash > 0)

    def weight_traffic(self, c: Columns, repeated: Array) -> Array:
        """Returns the bytes moved per parameter and micro-batch.

        `BF16_Optimizer` casts a gradient before it adds it (`update_hp_grads`). Stages 2 and 3 copy it to the bucket
        and divide it there, then add this rank's part (`stage_1_and_2.py`, `average_tensor`). Stage 3 concatenates
        gathered parameters, and gradients before their reduction (`AllGatherCoalescedHandle`,
        `reduce_scatter_coalesced`).
        """
        cast = c.compute_bytes + c.gradient_bytes
        sums = np.where(_sums_whole(c), cast + 3 * c.gradient_bytes, super().weight_traffic(c, repeated))
        sharded_sum = np.where(c.grad_accum > 1, 3 * c.gradient_bytes / c.shard, 0.0)
        bucketed = cast + 2 * c.gradient_bytes + sharded_sum
        gathered = np.where(c.shard > 1, 2 * c.compute_bytes * (2 + repeated), 0.0)
        sums = np.where(c.zero_stage == 2, bucketed, sums)
        sums = np.where(c.zero_stage == 3, bucketed + 2 * c.gradient_bytes + gathered, sums)
        return sums + cast_traffic(c, self.autocasts(c), repeated)

    def per_parameter(self, c: Columns) -> PerParameter:
        """Returns the bytes of weights in the products' type, masters and states, each sharded from its stage on."""
        sb, cb = c.state_bytes, c.compute_bytes
        autocasts, on_device = self.autocasts(c), 1.0 - c.states_on_host
        zero_1, zero_2, zero_3 = (np.where(c.zero_stage >= stage, c.shard, 1.0) for stage in (1, 2, 3))
        masters = np.where((sb > cb) | (c.zero_stage >= 1), sb, 0.0)
        weights = np.where(autocasts, sb, cb / zero_3) * (1 - c.parameters_on_host)
        states = np.where(autocasts, sb * c.moments, (masters + sb * c.moments) / zero_1)
        # Low-precision gradients are held in the type of their sums (fp32 under "bf16 with fp32 sums").
        summed = np.maximum(c.gradient_bytes, cb)
        accumulates = c.grad_accum > 1
        # In addition to the current micro-batch's low-precision gradients there are unsharded sums in a wider type.
        beside = ~autocasts & (summed > cb) & (c.zero_stage <= 1)
        gradients = np.where(autocasts, sb, summed / zero_2) + np.where(beside, cb, 0.0)
        held = np.where(accumulates | autocasts | beside, gradients, 0.0)
        # With offload, stage 1 still sums unsharded gradients on the device, and so does stage 2 with its own share if
        # the sums are wider than the products (`stage_1_and_2.py`, `copy_grads_in_partition`); they move to the host
        # only at the end of a step.
        away = np.where((c.zero_stage == 2) & (summed > cb), summed / zero_2, 0.0)
        away = np.where(c.zero_stage == 1, summed * accumulates, away)
        return PerParameter(
            resident=weights + states * on_device,
            held_gradients=np.where(c.states_on_host > 0, away, held),
            final_gradients=gradients * on_device,
            step_copies=self._step_copies(c, summed, zero_1, zero_3) * on_device,
        )

    def _step_copies(self, c: Columns, summed: Array, zero_1: Array, zero_3: Array) -> Array:
        """Returns the bytes per parameter of this rank's flattened gradients in the step.

        Stage 3 flattens one sub-group at a time; 16-bit sums are also cast to fp32. fp32 sums of 16-bit products are
        one flat tensor from the start, which the optimizer uses directly (`stage_1_and_2.py`,
        `_build_compact_grad_partition_buffer`; `bf16_optimizer.py`). fp32 gradients of fp32 products are flattened.
        """
        sb, cb = c.state_bytes, c.compute_bytes
        owned = np.maximum(c.layers * c.rank_block / c.parts("depth") / c.shard, 1.0)
        flat = np.where(summed >= sb, 0.0, (cb + sb) / zero_1)
        flat = np.where(c.zero_stage == 3, sb * np.minimum(SUB_GROUP / owned, 1.0) / zero_3, flat)
        alike = (sb == cb) & ((c.zero_stage == 1) | (c.zero_stage == 2)) & (c.parts("depth") == 1)
        return np.where(alike, sb / zero_1, np.where((sb > cb) & ~self.autocasts(c), flat, 0.0))

    def copies(self, c: Columns, ranks: Sequence[tuple[Array, Array]]) -> Iterator[Copies]:
        """Yields the copies of each rank. Stage 3 keeps up to a fixed number of gathered parameters. DeepSpeed drops
        autocast's cache, except the head's, before the loss. With checkpointing and logits of 2 bytes, the end of the
        forward pass may therefore hold more than the loss.
        """
        cb, block = c.compute_bytes, c.rank_block
        blocks = c.layers * block / c.parts("depth")
        autocasts = self.autocasts(c)
        cached = autocast_cache(c, autocasts)
        leaves = (c.full_checkpointing > 0) & (cached > 0)
        gathers = (c.zero_stage == 3) & (c.shard > 1)
        # Stage 3 reduces each gradient as soon as it is computed, and copies a module's gathered parameters into place.
        # Gate and up of all experts are one parameter, two thirds of a block's experts.
        largest = np.maximum(c.last_product, c.shared_out * 2 / 3) / c.parts("width") * cb
        for root, logits in ranks:
            live = gathering.of_modules(c, block=block, root=root, blocks=blocks) * cb
            before_loss = np.maximum(cached - logits * (1 - cb / c.logit_bytes), 0.0) + root * cb
            at_loss = np.where(leaves, before_loss, cached + head_cast(c, autocasts, logits))
            yield Copies(
                at_loss=np.where(gathers, live, at_loss),
                in_block=np.where(
                    gathers,
                    np.maximum(live, largest) + 2 * largest,
                    np.where(leaves, (root + block) * cb, cached),
                ),
                at_end=np.where(gathers, live, 0.0),
            )

    def table_gradient(self, c: Columns) -> Array:
        """Returns the bytes of the table's gradient. `BF16_Optimizer` casts each gradient to the type of its sum before
        adding it (`update_hp_grads`).
        """
        widened = self.autocasts(c) | _sums_whole(c)
        width = np.where(widened, np.maximum(c.gradient_bytes, c.compute_bytes), c.compute_bytes)
        return c.rank_table * width

    def buckets(self, c: Columns, owned: Array) -> Array:
        """Returns the bytes of one bucket, or of two if reductions overlap with compute. Stage 3 allocates its full
        bucket at the start for any model and any number of ranks; on a CPU, unwritten pages take no memory.
        """
        bucket = np.minimum(c.bucket_bytes / np.maximum(c.gradient_bytes, 1.0), owned) * c.gradient_bytes
        count = np.where((c.zero_stage > 1) | _overlaps(c), 2.0, 1.0)
        reduced = np.where(c.dp > 1, bucket * count, 0.0)
        return np.where(c.zero_stage == 3, np.where(c.units > 1, c.bucket_bytes, bucket), reduced)

    def stage_buffers(self, c: Columns, boundary: Array) -> Array:
        """Returns the bytes of each pipeline buffer's input and output."""
        return np.where(c.is_piped, 2 * boundary, 0.0)

    def data_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds by stage: 0 reduces after the backward pass, 1 and 2 also gather the updated
        parameters, 3 exchanges unit by unit.
        """
        reduced = Buckets.of(c, load.owned).reduced_s * syncs(c)
        stages = np.where(c.zero_stage >= 1, self._buckets_s(c, load), reduced)
        return np.where(c.zero_stage == 3, self._units_s(c, load), stages)

    def _buckets_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds of stages 1 and 2, which have all-reduced whole buckets since 2023
        (`stage_1_and_2.py`, `use_multi_rank_bucket_allreduce`). `BF16_Optimizer` all-reduces unsharded sums and updates
        its part of them.
        """
        buckets, whole_sums = Buckets.of(c, load.owned), _sums_whole(c)
        reduced = buckets.reduced_s
        sync_s = np.where((c.software.reduces_whole > 0) | whole_sums, reduced, buckets.scattered_s)
        beside = np.minimum(sync_s * (1 - 1 / buckets.count), load.backward) * hidden_share(c, buckets.ring)
        hidden = np.where(_overlaps(c) & ~whole_sums, beside, 0.0)
        times = np.where(c.zero_stage >= 2, c.grad_accum, syncs(c))
        return times * (sync_s - hidden) + buckets.owners.gather_s(load.owned * c.compute_bytes)

    def _units_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds of stage 3, which releases each module after each pass; recomputation gathers it
        once more (arXiv 2104.07857, section 4.1).
        """
        again = np.where(c.full_checkpointing > 0, checkpointed_share(c), 0.0)
        ones = np.ones(())
        return units_s(
            c,
            load,
            collectives=ZERO_3_GATHERS,
            gathers=1.0 + again,
            gathers_again=ones,
            near=c.shard,
            reductions=ones,
            hidden=np.where((c.axes["overlap"] == _OFF) | (c.software.stated_overlap < 0), 0.0, c.hidden_gathers),
            stored_bytes=c.compute_bytes,
        )

    def gradients_to_host_s(self, c: Columns, owned: Array) -> Array:
        """Returns the seconds of copying gradients to the host. Stage 3 keeps its sums on the host and loads each sum
        to add to it (`stage3.py`, `partition_grads`).
        """
        down = owned / c.shard * c.gradient_bytes / c.host_bandwidth
        return np.where((c.zero_stage == 3) & (c.states_on_host > 0), (c.grad_accum - 1) * 2 * down, 0.0)

    def hooks(self, c: Columns) -> HookCosts:
        """Returns the host seconds of one block's hooks. Stage 3 hooks each of six modules of a block; at lower stages
        the wrapped optimizer hooks each gradient.
        """
        fetching = np.where(c.zero_stage == 3, 6 * GATHER_HOST_S, 0.0)
        hooked = self.wraps_optimizer(c) & (c.zero_stage < 3) & (c.software.blocking > 0)
        return HookCosts(
            forward=fetching,
            backward=2 * fetching + np.where(hooked, 12 * GRADIENT_HOST_S, 0.0),
            again=fetching,
        )

    def step_host_s(self, c: Columns) -> Array:
        """Returns the host seconds of the optimizer's step: in fp16 it checks each gradient for overflow."""
        searches = self.wraps_optimizer(c) & (c.scales_loss > 0) & (c.zero_stage < 3)
        return np.where(searches, 12 * c.layers / c.parts("depth") * GRADIENT_HOST_S, 0.0)

    exchanges_both_ways = False  # its instructions send and receive one after the other

    def instructions_s(self, c: Columns) -> Array:
        """Returns the host seconds to interpret the instructions of a pipeline's micro-step."""
        return np.asarray(INSTRUCTIONS_S)

    def sigma(self, c: Columns) -> Array:
        """Returns the log deviation for stage 3, whose prefetching differs between versions."""
        return np.where(c.zero_stage == 3, ZERO_3_SIGMA, 0.0)

    def certain(self, recipe: Recipe, layout: Layout, batch: BatchPoint) -> Certain:
        """Returns the certain memory by stage: `per_parameter` without flat buffers that some versions may not need."""
        sizes, stage = Sizes.of(recipe), layout.zero_stage
        state, compute = sizes.state, sizes.compute
        accumulates, on_device = batch.grad_accum > 1, layout.offload == "none"
        if stage == 0 and compute < state:
            # Gradients appear in the backward pass, and stay only if another micro-batch follows.
            certain = autocast_certain(sizes, layout)
            held = state if accumulates and on_device else 0.0
            return dataclasses.replace(certain, held_gradients=held)
        shard = layout.shards
        weights = 0.0 if layout.offload == "all" else compute / (shard if stage == 3 else 1)
        masters = state if state > compute else 0.0
        states = (masters + sizes.moments) / (shard if stage >= 1 else 1)
        gradients = final = compute / (shard if stage >= 2 else 1)
        # Stage 1 in bf16 sums in fp32, in a separate buffer that exists from the start.
        summing = stage == 1 and recipe.compute_precision == "bf16" and state > compute
        if stage in (1, 2) and masters:
            final = state / shard  # the step flattens this rank's share of the gradients and casts it to fp32
        if summing:
            gradients = final = state
        if not on_device:
            # With offload stage 1 still sums unsharded gradients on the device; whether stage 2 does depends on their
            # type.
            gradients, final = gradients if stage == 1 else 0.0, 0.0
        return Certain(
            resident=weights + (states if on_device else 0.0),
            held_gradients=gradients if accumulates or (summing and on_device) else 0.0,
            final_gradients=final,
            unit_copies=compute if stage == 3 and layout.dp_shard > 1 else 0.0,
        )


def _overlaps(c: Columns) -> Mask:
    """Returns the rows of stages 1 and 2 whose communication overlaps with compute."""
    return ((c.axes["overlap"] == _ON) | (c.software.stated_overlap > 0)) & (c.zero_stage < 3)


def _sums_whole(c: Columns) -> Mask:
    """Returns the rows of `BF16_Optimizer`: stage 1 with sums wider than the products."""
    return (c.zero_stage == 1) & (c.gradient_bytes > c.compute_bytes)


COSTS = DeepSpeed()
