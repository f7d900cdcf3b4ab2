"""What engines hold of parameters and gradients, by stage: bytes a parameter, and copies beside them.

Sources: bytes of states by stage: ZeRO (arXiv 1910.02054, section 3.1); what engines hold besides was read in their
code and checked with torch's FSDPMemTracker.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from platform.cost_model.columns import DDP, DEEPSPEED, FSDP, Array, Columns, checkpointed_share, is_autocast
from platform.cost_model.compression import held_bytes, passing_bytes

LIVE_PARAMETERS = 1e9
"""DeepSpeed's `stage3_max_live_parameters`."""
SUB_GROUP = 1e9
"""DeepSpeed's `sub_group_size`: parameters whose gradients ZeRO-3 casts at once."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PerParameter:
    """Bytes a parameter of one rank's share of the model."""

    resident: Array
    held_gradients: Array
    final_gradients: Array
    step_copies: Array
    """Flat copies while the optimizer steps."""


def per_parameter(c: Columns) -> PerParameter:
    """Bytes by engine and stage. `c.shard` ranks share what the stage shards."""
    sb, cb, moments = c.state_bytes, c.compute_bytes, c.moments
    on_device = np.where(c.states_on_host > 0, 0.0, 1.0)
    accumulates = c.grad_accum > 1
    fsdp = c.engine == FSDP
    zero_1, zero_2, zero_3 = (np.where(c.zero_stage >= stage, c.shard, 1.0) for stage in (1, 2, 3))
    masters = np.where(sb > cb, sb, np.where((c.engine == DEEPSPEED) & (c.zero_stage >= 1), sb, 0.0))

    # Whole weights in the states' type, gradients beside them: DDP, and what computes as DDP does.
    whole = (c.engine == DDP) | is_autocast(c)
    params = np.where(whole, sb, np.where(fsdp, 0.0, cb / zero_3)) * np.where(c.parameters_on_host > 0, 0.0, 1.0)
    states = np.where(
        whole, sb * moments, np.where(fsdp, sb * (1 + moments) / c.shard, (masters + sb * moments) / zero_1)
    )
    # Low-precision engines hold gradients in the type in which they are summed (fp32 under "bf16 with fp32 sums").
    summed = np.where(c.engine >= DEEPSPEED, np.maximum(c.gradient_bytes, cb), sb)
    unsharded_sum = fsdp & (c.sync_every == 0) & accumulates
    shards = sb / c.shard * on_device
    gradients = np.where(fsdp, np.where(unsharded_sum, sb, shards), np.where(whole, sb, summed / zero_2))
    # Whole sums in a wider type stand beside the low-precision gradients of the current micro-batch.
    beside = (c.engine >= DEEPSPEED) & ~whole & (summed > cb) & (c.zero_stage <= 1)
    gradients = gradients + np.where(beside, cb, 0.0)
    held = np.where(accumulates | whole | beside, gradients, 0.0)
    final = np.where(fsdp, sb / c.shard, gradients)
    # Offloaded, stage 1 still sums whole gradients on the device, and stage 2 what it owns where the sums are wider
    # than the products (`stage_1_and_2.py`, `copy_grads_in_partition`); only at the end of a step do they go down.
    away = np.where(
        c.zero_stage == 1, summed * accumulates, np.where((c.zero_stage == 2) & (summed > cb), summed / zero_2, 0.0)
    )
    held = np.where((c.states_on_host > 0) & (c.engine == DEEPSPEED), away, held)
    casts = (c.engine == DEEPSPEED) & (sb > cb) & ~whole
    # The step flattens this rank's gradients, stage 3 a sub-group at a time; sums in 16 bits are cast to fp32 as well.
    # fp32 sums of 16-bit products stand in one flat tensor from the start, that the optimizer takes as it is
    # (`stage_1_and_2.py`, `_build_compact_grad_partition_buffer`; `bf16_optimizer.py`); fp32 throughout is flattened.
    owned = np.maximum(c.layers * c.layer_parameters / c.tp / c.pp / c.shard, 1.0)
    flat = np.where(
        c.zero_stage == 3,
        sb * np.minimum(SUB_GROUP / owned, 1.0) / zero_3,
        np.where(summed >= sb, 0.0, (cb + sb) / zero_1),
    )
    copies = np.where(casts, flat, 0.0)
    alike = (c.engine == DEEPSPEED) & (sb == cb) & ((c.zero_stage == 1) | (c.zero_stage == 2)) & (c.pp == 1)
    copies = np.where(alike, sb / zero_1, copies)
    return PerParameter(
        resident=params + states * on_device + held_bytes(c),
        held_gradients=held,
        final_gradients=final * on_device,
        step_copies=copies * on_device,
    )


def unit_copies(c: Columns, ranks: Sequence[tuple[Array, Array]]) -> Iterator[tuple[Array, Array, Array]]:
    """Bytes of unsharded copies (at the loss, in a block's backward, at the end of backward) of each of `ranks`, which
    are given as (parameters outside the blocks, bytes of logits).

    FSDP2 keeps the root unit (embeddings) through the forward pass and gathers one block ahead; a backward unit has
    its parameters, their gradients and the fp32 input of the reduction. ZeRO-3 keeps up to a set number of gathered
    parameters. Autocast caches the cast weights; DeepSpeed leaves it before the loss, where only the head's stays, so
    that with checkpointing the end of the forward pass, with logits of 2 bytes, may hold more than the loss.
    """
    cb, sb = c.compute_bytes, c.state_bytes
    block = c.layer_parameters / c.tp
    whole = c.layers * block / c.pp
    fsdp = (c.engine == FSDP) & ((c.shard > 1) | (cb != sb))
    # Between the passes each rank of a smaller group has its part of every block.
    keeps = np.where(c.zero_stage == 2, whole, np.where(c.reshard < c.shard, whole / c.reshard, 0.0))
    ahead = np.maximum(c.blocks_ahead, 1.0)
    unit = np.where(c.zero_stage == 2, whole, (1 + ahead) * block + keeps) * cb + block * (cb + sb)
    zero_3 = (c.engine == DEEPSPEED) & (c.zero_stage == 3) & (c.shard > 1)
    # It reduces each gradient as it comes, and copies what it gathered for a module into place.
    largest = c.ffn * c.hidden / c.tp * cb
    # A compiled block casts its own weights and, unless it is checkpointed, saves the casts for its backward pass.
    repeated = np.where(c.full_checkpointing > 0, checkpointed_share(c), c.selective_checkpointing)
    autocast = np.where(is_autocast(c), cb * whole * np.where(c.fused > 0, 1 - repeated, 1.0), 0.0)
    leaves = (c.engine == DEEPSPEED) & (c.full_checkpointing > 0) & (autocast > 0)
    passing = passing_bytes(c)
    later = np.where(c.shard > 1, 2 * cb, cb) + sb
    for root, logits in ranks:
        live = np.minimum(np.minimum(LIVE_PARAMETERS, whole + root), np.maximum(2 * block, root)) * cb
        wished = np.minimum((1 + c.blocks_ahead) * block + root, whole + root) * cb
        live = np.where(c.blocks_ahead > 0, wished, live)
        before_loss = np.maximum(autocast - logits * (1 - cb / c.logit_bytes), 0.0) + root * cb
        gathered = np.where(fsdp, (root + keeps) * cb, live)
        in_block = np.where(fsdp, root * cb + unit, np.maximum(live, largest) + 2 * largest)
        gathers = fsdp | zero_3
        yield (
            np.where(gathers, gathered, np.where(leaves, before_loss, autocast)),
            np.where(gathers, in_block, np.where(leaves, (root + block) * cb, autocast)),
            # The root's reduction comes last: parameters, gradients and, unless one rank reduces in place, their copy.
            np.where(fsdp, root * later, np.where(zero_3, live, passing)),
        )


def table_gradient(c: Columns) -> Array:
    """Bytes that the vocabulary table's gradient takes beside the sum it is added to, on the ranks that have the table.

    A lookup's gradient is as large as its table. `BF16_Optimizer`, whose sums are wider than the products, casts each
    gradient to their type before it adds it (`update_hp_grads`); FSDP's root unit is counted in `unit_copies`.
    """
    casts = (c.engine == DEEPSPEED) & (c.zero_stage == 1) & (c.gradient_bytes > c.compute_bytes)
    width = np.where(is_autocast(c) | casts, np.maximum(c.gradient_bytes, c.compute_bytes), c.compute_bytes)
    return np.where(c.engine == FSDP, 0.0, c.table_parameters / c.tp * width)
