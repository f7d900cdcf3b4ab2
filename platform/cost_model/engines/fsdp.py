"""FSDP2: each block is a unit; its parameters are gathered for its passes and its gradients reduced to shards."""

from collections.abc import Iterator, Sequence

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask, code_of
from platform.cost_model.engines import gathering
from platform.cost_model.engines.base import NOTHING, Certain, Copies, EngineCosts, HookCosts, Load, PerParameter, Sizes
from platform.cost_model.engines.exchange import units_s
from platform.cost_model.offload import HOST_SUMS
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

UNIT_HOST_S = constants.number("fsdp", "UNIT_HOST_S")
CAST_HOST_S = constants.number("fsdp", "CAST_HOST_S")
REDUCE_HOST_S = constants.number("fsdp", "REDUCE_HOST_S")
COLLECTIVE_HOST_S = constants.number("fsdp", "COLLECTIVE_HOST_S")
SHARD_STEP_S = constants.number("fsdp", "SHARD_STEP_S")
_KEEP = code_of("after_backward", "keep")


class Fsdp(EngineCosts):
    """`torch.distributed.fsdp.fully_shard` over each block and the root. Stage 2 keeps blocks gathered."""

    def bucket_bytes(self, state_bytes: float, compute_bytes: float) -> float:
        """Returns 0: each unit is reduced separately, without buckets."""
        return 0.0

    def weight_traffic(self, c: Columns, repeated: Array) -> Array:
        """Returns the bytes moved per parameter and micro-batch. Shards are cast and gathered parameters copied into
        place (at stage 3 for each pass; on one rank too), and gradients are cast for the reduction (arXiv 2304.11277,
        section 4.2); only this rank's part is then added up.
        """
        sharded_sum = np.where(c.grad_accum > 1, 3 * c.gradient_bytes / c.shard, 0.0)
        reduced = c.compute_bytes + c.gradient_bytes + sharded_sum
        sums = np.where((c.sync_every > 0) & (c.shard > 1), reduced, super().weight_traffic(c, repeated))
        moved = (_cast_bytes(c) / c.shard + 2 * c.gathered_bytes) * sum(_gathers(c))
        return sums + moved

    def gathers_casts(self, c: Columns) -> Mask:
        """Returns the rows that gather one byte per parameter."""
        return c.gathered_bytes < c.compute_bytes

    def frozen_traffic(self, c: Columns) -> Array:
        """Returns the bytes moved per frozen parameter and micro-batch: gathered ones are copied into place."""
        return 2 * c.gathered_bytes * sum(_gathers(c))

    def converted_values(self, c: Columns) -> Array:
        """Returns the values moved one by one if gradients in the products' type are summed in the states' type: 3 per
        parameter for the sum of unsharded gradients (torch 2.13, `FSDPParam.accumulate_unsharded_grad_if_needed`), 2
        for the cast of each micro-batch's gradients into the reduction's input (ATen, `TensorShape.cu`,
        `copy_chunk_with_pad`).
        """
        reduced = (c.sync_every > 0) & (c.shard > 1)
        sums = np.where(reduced, 2.0, np.where(c.grad_accum > 1, 3.0, 0.0))
        return np.where(c.gradient_bytes != c.compute_bytes, sums, 0.0)

    def per_parameter(self, c: Columns) -> PerParameter:
        """Returns the bytes of sharded weights and states; gradients summed before the reduction are unsharded."""
        on_device = 1.0 - c.states_on_host
        shards = c.state_bytes / c.shard * on_device
        accumulates = c.grad_accum > 1
        held = np.where((c.sync_every == 0) & accumulates, c.state_bytes * _gathered_share(c), shards)
        return PerParameter(
            resident=c.state_bytes * (1 + c.moments * (1 - c.moments_on_host)) / c.shard * on_device,
            held_gradients=np.where(accumulates, held, 0.0),
            final_gradients=shards,
            step_copies=NOTHING,
            frozen=c.stored_bytes / c.shard,
        )

    def copies(self, c: Columns, ranks: Sequence[tuple[Array, Array]]) -> Iterator[Copies]:
        """Yields the copies of each rank. The root unit (embeddings) stays gathered through the forward pass, and one
        block is prefetched; a unit in its backward pass holds its parameters, their gradients and the reduction's fp32
        input. A single rank also copies its parameters (torch 2.13, `FSDPParamGroup.wait_for_unshard`).
        """
        cb, sb = c.compute_bytes, c.state_bytes
        block = c.gathered_block
        blocks = c.layers * block / c.parts("depth")
        # Between the passes each rank of the smaller group holds its part of every block.
        few = _between_passes(c)
        keeps = np.where(c.zero_stage == 2, blocks, np.where(few < c.shard, blocks / few, 0.0))
        gathered = np.where(c.zero_stage == 2, blocks, gathering.of_units(c, block) + keeps) * c.gathered_bytes
        # A single rank with gradients in the states' type reduces them in place.
        reduces = (c.shard > 1) | (cb != sb)
        gradients = np.where(reduces, block * (cb + sb), 0.0)
        later = np.where(reduces, np.where(c.shard > 1, 2 * cb, cb) + sb, cb)
        if c.has_adapters:  # frozen units have only parameters; adapters are not cast
            gradients = np.where(c.adapter_rank > 0, 2 * sb * c.adapter_block, gradients)
            later = np.where(c.adapter_rank > 0, cb, later)
        saved = _saved_again(c)
        keeps_on = (c.axes["after_backward"] == _KEEP) & (c.grad_accum > 1)
        kept = np.where(keeps_on, blocks * c.gathered_bytes, 0.0)
        reduced_last = c.is_piped & (c.sync_every == 0)  # a pipeline's gradients are reduced after its last micro-batch
        for root, _ in ranks:
            yield Copies(
                at_loss=root * cb + keeps * c.gathered_bytes + saved,
                in_block=root * cb + gathered + saved + gradients,
                # The root is reduced last: parameters, gradients and, unless a single rank reduces in place, their
                # copy.
                at_end=root * np.where(reduced_last, 2 * cb, later) + kept,
                at_last_end=root * np.where(reduced_last, later, 0.0),
            )

    def table_gradient(self, c: Columns) -> Array:
        """Returns 0: the root unit's gradient is part of `copies`."""
        return NOTHING

    def unpooled(self, c: Columns, owned: Array) -> Array:
        """Returns the bytes of sharded gradients if sums are unsharded before the reduction, because these sums are
        freed into another stream's pool.
        """
        whole_sums = (c.sync_every == 0) & (c.grad_accum > 1) & (c.states_on_host == 0)
        return np.where(whole_sums, c.trained(owned) * c.state_bytes / c.shard, 0.0)

    def optimizer_ranks(self, c: Columns) -> Array:
        return c.shard

    def tied_ranks(self, c: Columns) -> Array:
        """Returns the number of ranks that share the parameters: gradients are added after their reduction."""
        return c.shard

    def data_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds per step: a block is gathered for its forward and, at stage 3, backward pass."""
        gathers, gathers_again = _gathers(c)
        return units_s(
            c,
            load,
            collectives=1.0,
            gathers=gathers,
            gathers_again=gathers_again,
            near=_between_passes(c),
            reductions=np.where(c.sync_every > 0, 1.0, 1.0 / c.grad_accum),
            hidden=None,
            stored_bytes=c.state_bytes,
        )

    def gradients_to_host_s(self, c: Columns, owned: Array) -> Array:
        """Returns the seconds of copying gradients to the host and adding them to the sums there."""
        share = owned / c.shard * c.gradient_bytes
        sums = (c.sync_every > 0) & (c.parameters_on_host > 0)
        return np.where(sums, (c.grad_accum - 1) * (share / c.host_bandwidth + share / HOST_SUMS), 0.0)

    def hooks(self, c: Columns) -> HookCosts:
        """Returns the host seconds of one unit's hooks; gradients may be reduced only in a step's last micro-step. The
        checkpoint is inside the unit, and inside compiled code.
        """
        collective = np.where(c.shard > 1, COLLECTIVE_HOST_S, 0.0)
        gather, reduce = CAST_HOST_S + collective, REDUCE_HOST_S + collective
        gathers, gathers_again = _gathers(c)
        reductions = np.where(c.sync_every > 0, 1.0, 1.0 / c.grad_accum)
        units = np.where(c.parts("experts") > 1, 2.0, 1.0)  # experts on different ranks are a separate unit
        return HookCosts(
            forward=units * (UNIT_HOST_S + gathers * gather),
            backward=units * (2 * UNIT_HOST_S + gathers_again * gather + reductions * reduce),
            again=NOTHING,
        )

    def step_block_host_s(self, c: Columns) -> Array:
        """Returns the host seconds to unscale, clip and step each of a block's twelve parameters as a plain tensor."""
        return np.asarray(12 * SHARD_STEP_S)

    def certain(self, recipe: Recipe, layout: Layout, batch: BatchPoint) -> Certain:
        """Returns the certain memory: shards (context-parallel ranks may share them) and unsharded gradient sums."""
        sizes, shard = Sizes.of(recipe), layout.shards
        on_device, moments = 0.0 if layout.steps_on_host else 1.0, 0.0 if layout.offload == "moments" else sizes.moments
        part = 1 / layout.parts("experts")  # a lower limit: not all of a model is experts
        held = sizes.state * part if layout.grad_sync == "last" else on_device * sizes.state / shard
        return Certain(
            resident=on_device * (sizes.state + moments) / shard,
            held_gradients=held if batch.grad_accum > 1 else 0.0,
            final_gradients=on_device * sizes.state / shard,
            block_copies=sizes.gathered * part if layout.zero_stage == 2 else 0.0,
            unit_copies=sizes.gathered * part if layout.zero_stage == 3 and layout.dp_shard > 1 else 0.0,
            frozen=on_device * sizes.stored / shard,
        )


def _gathers(c: Columns) -> tuple[Array, Array]:
    """Returns how often a block is gathered for a micro-step's forward and backward pass. Stage 2 gathers in a step's
    first micro-step alone, and stage 3 for later forward passes just where backward passes free a block.
    """
    is_freed = (c.zero_stage == 3) & (c.axes["after_backward"] != _KEEP)
    return np.where(is_freed, 1.0, 1.0 / c.grad_accum), np.where(c.zero_stage == 3, 1.0, 0.0)


def _gathered_share(c: Columns) -> Array:
    """Returns the share of a rank's parameters held with gathered shards: below 1 with expert parallelism."""
    outside = c.embedding_parameters / c.parts("width")
    return (c.layers * c.gathered_block + outside) / (c.layers * c.rank_block + outside)


def _cast_bytes(c: Columns) -> Array:
    """Returns the bytes per parameter moved to cast a shard before its gather. A cast to bf16 reads and writes the
    shard once. A cast to FP8 takes several uncompiled passes: from bf16 states to fp32, the product with the scale, the
    clamp to FP8's range, and the cast (torchao 0.18, `_ToFloat8ConstrFunc`, `to_fp8_saturated`).
    """
    to_fp32 = np.where(c.state_bytes < 4, c.state_bytes + 4, 0.0)
    to_fp8 = to_fp32 + 2 * (4 + 4) + 4 + c.gathered_bytes
    same = c.state_bytes == c.gathered_bytes
    return np.where(c.gathered_bytes < c.compute_bytes, to_fp8, np.where(same, 0.0, c.state_bytes + c.gathered_bytes))


def _saved_again(c: Columns) -> Array:
    """Returns the bytes of column-major FP8 weights that compiled blocks save in addition to the gathered ones, for the
    backward products: gate, up and down of a gated feed-forward, else the last product (torch 2.13's partitioner on
    Llama's and GPT-NeoX's blocks). Checkpointed blocks recompute them.
    """
    plain = (c.fused > 0) & (c.full_checkpointing == 0) & (c.selective_checkpointing == 0)
    weights = c.layers / c.parts("depth") * c.saved_weights
    casts = (c.gathered_bytes < c.compute_bytes) & (c.adapter_rank == 0)
    return np.where(plain & casts, weights * c.gathered_bytes, 0.0)


def _between_passes(c: Columns) -> Array:
    """Returns the number of ranks that hold a block between its passes: all sharding ranks, or the `reshard` group."""
    reshard = c.axes["reshard"]
    return np.where(reshard > 0, np.minimum(reshard * c.parts("tokens"), c.shard), c.shard)


COSTS = Fsdp()
