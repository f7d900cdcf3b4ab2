"""Peak memory of the largest rank, by phase, from columns; and the sound floor that the search prunes by.

Sources: bytes of states by stage: ZeRO (arXiv 1910.02054, section 3.1); activations of a block: arXiv 2205.05198,
section 4.1, tensor by tensor; micro-batches in flight: arXiv 2104.04473, section 2.2. What engines hold besides was
read in their code and checked with torch's FSDPMemTracker.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from platform.cost_model import compression
from platform.cost_model.columns import (
    CHUNK_LOGITS,
    Array,
    Columns,
    casts_softmax,
    checkpointed_share,
    is_autocast,
    widens_gelu,
)
from platform.cost_model.lower_bound import GIB, LowerBound, lower_bound, lower_bound_gib
from platform.cost_model.step_time import DDP, DEEPSPEED, FSDP, rank_parameters, stages_of

__all__ = ["PHASES", "LowerBound", "PeakMemory", "lower_bound", "lower_bound_gib", "peak_memory"]

PHASES = ("loss", "block_backward", "end_of_backward", "optimizer")
BLOCK_BACKWARD, OPTIMIZER = 1, 3

EAGER_SCORE_BYTES = 4.0
"""Of an attention score besides the probabilities: the fp32 softmax that eager attention saves."""
LIVE_PARAMETERS = 1e9
"""DeepSpeed's `stage3_max_live_parameters`."""
SUB_GROUP = 1e9
"""DeepSpeed's `sub_group_size`: parameters whose gradients ZeRO-3 casts at once."""
FRAGMENTATION = 0.10
"""Reserved over allocated at the peak: blocks are rounded up and split (PyTorch's caching allocator). What of it cannot
be given back is `columns.ROUNDING`."""
COMMUNICATOR_GIB = 0.6
"""Buffers of one NCCL communicator: send and receive buffers of three protocols, 9 MiB a
channel and direction, some 30 channels (NCCL, `NCCL_BUFFSIZE` and `NCCL_LL128_BUFFSIZE`)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """GiB of the rank that holds most, and where the peak is."""

    allocated_gib: Array
    device_gib: Array
    """What nvidia-smi shows: allocated with fragmentation, context and communicators."""
    needed_gib: Array
    """What must fit: allocated, context and communicators. The allocator gives cached blocks back before it fails, so
    fragmentation slows a run down (outcome "thrash") before it ends it."""
    phase: Array
    """Index into `PHASES`."""
    binding_rank: Array
    """0 the first pipeline stage, 1 one in the middle, 2 the last; 0 without a pipeline."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """What stands at one instant on one rank, in GiB (bytes while it is being computed)."""

    states: Array
    gradients: Array
    copies: Array
    """Unsharded, low-precision or flat copies of parameters and gradients, and buckets."""
    activations: Array
    logits: Array

    @property
    def total(self) -> Array:
        """All of it."""
        return self.states + self.gradients + self.copies + self.activations + self.logits


def _block_bytes(c: Columns) -> tuple[Array, Array, Array]:
    """Bytes that one block saves for one micro-batch: (everything, its input alone, transients of its backward).

    Norm inputs and outputs (4 h), queries, keys, values, attention's output, the inner values before and after the
    activation; eager attention saves probabilities (and the fp32 softmax); dropout saves a byte a value.
    """
    tokens = c.micro_batch * c.seq_len / c.cp
    split = np.where(c.sequence_parallel > 0, c.tp, 1.0)
    # Autocast keeps the residual stream in fp32.
    residual = np.where(is_autocast(c), c.state_bytes, c.compute_bytes)
    # In fp32: the power's input, the tangent and one plus it; in two bytes half the input and the output.
    inner = np.where(widens_gelu(c), 8.0, c.inner_copies) * c.ffn
    replicated = (2 * residual * c.hidden + 2 * c.compute_bytes * c.hidden + 2 * c.dropout * c.hidden) / split
    sharded = c.compute_bytes * (2 * c.hidden + 2 * c.kv_width + inner) / c.tp
    per_score = c.compute_bytes + c.dropout * (1 + c.compute_bytes)
    per_score = per_score + np.where((c.fused == 0) & casts_softmax(c), EAGER_SCORE_BYTES, 0.0)
    scores = np.where(c.flash > 0, 0.0, per_score * c.heads * c.seq_len / c.tp)
    # Selective checkpointing forgets the attention core, the scores above all.
    kept_scores = np.where(c.checkpointing == 1, 0.0, scores)
    transient = tokens * c.compute_bytes * (2 * c.ffn / c.tp + 2 * c.hidden)
    transient = transient + np.where(c.checkpointing == 1, tokens * scores, 0.0)
    # This project's selective checkpointing keeps a block's input and what its products and fused attention give.
    products = 4 * c.hidden + 2 * c.kv_width + (1 + c.gated) * c.ffn
    kept = np.where(
        (c.checkpointing == 1) & (c.engine <= DEEPSPEED),
        residual * c.hidden / split + c.compute_bytes * products / c.tp,
        replicated + sharded + kept_scores,
    )
    return tokens * kept, tokens * residual * c.hidden / split, transient


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _PerParameter:
    """Bytes a parameter of one rank's share of the model."""

    resident: Array
    held_gradients: Array
    final_gradients: Array
    step_copies: Array
    """Flat copies while the optimizer steps."""


def _per_parameter(c: Columns) -> _PerParameter:
    """Bytes by engine and stage. `c.shard` ranks share what the stage shards."""
    sb, cb, moments = c.state_bytes, c.compute_bytes, c.moments
    on_device = np.where(c.offload > 0, 0.0, 1.0)
    accumulates = c.grad_accum > 1
    fsdp = c.engine == FSDP
    zero_1, zero_2, zero_3 = (np.where(c.zero_stage >= stage, c.shard, 1.0) for stage in (1, 2, 3))
    masters = np.where(sb > cb, sb, np.where((c.engine == DEEPSPEED) & (c.zero_stage >= 1), sb, 0.0))

    # Whole weights in the states' type, gradients beside them: DDP, and what computes as DDP does.
    whole = (c.engine == DDP) | is_autocast(c)
    params = np.where(whole, sb, np.where(fsdp, 0.0, cb / zero_3)) * np.where(c.offload == 2, 0.0, 1.0)
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
    return _PerParameter(
        resident=params + states * on_device + compression.held_bytes(c),
        held_gradients=held * np.where((c.offload > 0) & (c.engine == DEEPSPEED), 0.0, 1.0),
        final_gradients=final * on_device,
        step_copies=copies * on_device,
    )


def _unit_copies(c: Columns, root: Array, logits: Array) -> tuple[Array, Array, Array]:
    """Bytes of unsharded copies (at the loss, in a block's backward, at the end of backward).

    FSDP2 keeps the root unit (embeddings) through the forward pass and gathers one block ahead; a backward unit has
    its parameters, their gradients and the fp32 input of the reduction. ZeRO-3 keeps up to a set number of gathered
    parameters. Autocast caches the cast weights; DeepSpeed leaves it before the loss, where only the head's stays, so
    that with checkpointing the end of the forward pass, with logits of 2 bytes, may hold more than the loss.
    """
    cb, sb = c.compute_bytes, c.state_bytes
    block = c.layer_parameters / c.tp
    whole = c.layers * block / c.pp
    gathers = (c.shard > 1) | (cb != sb)
    fsdp = (c.engine == FSDP) & gathers
    ahead = np.maximum(c.prefetch, 1.0)
    # Between the passes each rank of a smaller group has its part of every block.
    between = np.where(c.reshard < c.shard, whole / c.reshard, 0.0)
    kept = np.where(c.zero_stage == 2, whole, (1 + ahead) * block + between)
    zero_3 = (c.engine == DEEPSPEED) & (c.zero_stage == 3) & (c.shard > 1)
    live = np.minimum(np.minimum(LIVE_PARAMETERS, whole + root), np.maximum(2 * block, root)) * cb
    wished = np.minimum((1 + c.prefetch) * block + root, whole + root) * cb
    live = np.where(c.prefetch > 0, wished, live)
    autocast = np.where(is_autocast(c) & (c.fused == 0), cb * whole, 0.0)
    before_loss = np.maximum(autocast - logits * (1 - cb / c.logit_bytes), 0.0) + np.where(autocast > 0, root * cb, 0.0)
    leaves = (c.engine == DEEPSPEED) & (c.checkpointing == 2)
    at_loss = np.where(leaves, before_loss, autocast)
    loss = np.where(fsdp, (root + np.where(c.zero_stage == 2, whole, between)) * cb, np.where(zero_3, live, at_loss))
    unit = np.where(
        fsdp,
        (root + kept) * cb + block * (cb + sb),
        np.where(zero_3, live + block * cb, np.where(leaves & (autocast > 0), (root + block) * cb, autocast)),
    )
    # The root's reduction comes last: parameters, gradients and, unless one rank reduces in place, their fp32 copy.
    end = np.where(fsdp, root * (cb + sb + np.where(c.shard > 1, cb, 0.0)), np.where(zero_3, live, 0.0))
    end = end + compression.passing_bytes(c)
    return loss, unit, end


def _instants(c: Columns) -> Iterator[tuple[int, int, MemoryParts]]:
    """(rank, phase, bytes held) of each instant that may be the peak: four phases on the first, a middle and the last
    stage of a pipeline. Stages that do not exist hold nothing.
    """
    per = _per_parameter(c)
    stages = stages_of(c)
    everything, kept_input, transient = _block_bytes(c)
    saved = np.maximum(c.budget * everything, kept_input)
    full = c.checkpointing == 2
    share = np.where(full, checkpointed_share(c), 0.0)
    kept = share * kept_input * c.kept_checkpoints / c.checkpoint_blocks + (1 - share) * saved
    again = np.where(full, saved * c.checkpoint_blocks - kept_input, 0.0) + transient + everything - saved
    tokens = c.micro_batch * c.seq_len / c.cp
    boundary = tokens * c.hidden * c.compute_bytes
    width = c.vocab / c.tp
    chunked = c.chunked_loss > 0
    logits = np.where(chunked, np.minimum(tokens * width, CHUNK_LOGITS), tokens * width) * c.logit_bytes
    # The table's gradient is summed in fp32; that of a further chunk stands beside it.
    sums = 4.0 * width * c.hidden
    logits = logits + np.where(chunked, np.where(tokens * width > CHUNK_LOGITS, 2 * sums, sums), 0.0)
    root = c.embedding_parameters / c.tp
    owned, _ = rank_parameters(c, stages)

    piped = c.pp > 1
    in_flight = np.minimum(c.pp, c.grad_accum)
    interleaved = 1 + (c.pp - 1) / (c.pp * c.virtual_stages) * (c.virtual_stages > 1)
    # DeepSpeed's pipeline keeps each buffer's input and output beside the blocks' own.
    buffers = np.where(piped & (c.engine == DEEPSPEED), 2 * boundary, 0.0)
    block = c.layer_parameters / c.tp
    head_parameters = np.where(c.tied > 0, c.embedding_parameters, c.table_parameters) / c.tp
    bucket = np.minimum(c.bucket_bytes / np.maximum(c.gradient_bytes, 1.0), owned) * c.gradient_bytes
    num_buckets = np.where((c.zero_stage > 1) | (c.overlaps > 0), 2.0, 1.0)
    buckets = np.where((c.engine == DEEPSPEED) & (c.dp > 1), bucket * num_buckets, 0.0)
    # Stage 3 makes its bucket at the start, whole, whatever the model and the ranks; on a CPU, pages that nobody writes
    # take no memory.
    whole_bucket = np.where(c.units > 1, c.bucket_bytes, bucket)
    buckets = np.where((c.engine == DEEPSPEED) & (c.zero_stage == 3), whole_bucket, buckets)
    nothing = np.zeros(())
    ranks = (
        (
            1.0,
            np.where(piped, stages.first * block + root, owned),
            np.where(piped, stages.first, c.layers),
            np.where(piped, in_flight * interleaved, 1.0),
            np.where(piped, 0.0, logits),
            root,
        ),
        (np.where(c.pp > 2, 1.0, 0.0), stages.largest * block, stages.largest, in_flight - 1.0, nothing, root * 0.0),
        (np.where(piped, 1.0, 0.0), stages.last * block + head_parameters, stages.last, np.ones(()), logits, root),
    )
    for rank, (exists, parameters, layers, flight, loss, own_root) in enumerate(ranks):
        if rank and not np.any(exists):
            continue
        at_loss, at_block, at_end = _unit_copies(c, own_root, loss)
        owned_here = parameters * exists
        resident, held = owned_here * per.resident, owned_here * per.held_gradients
        final = owned_here * per.final_gradients
        activations = flight * (layers * kept + buffers) * exists
        common = buckets * exists
        held_parts = (
            (held, at_loss * exists + common, activations, loss * exists),
            (held, at_block * exists + common, activations + again * exists, nothing),
            (np.maximum(final, held), at_end * exists + common, nothing, nothing),
            (final, owned_here * per.step_copies, nothing, nothing),
        )
        for phase, (gradients, copies, saved_values, logit_bytes) in enumerate(held_parts):
            yield (
                rank,
                phase,
                MemoryParts(
                    states=resident,
                    gradients=gradients,
                    copies=copies,
                    activations=saved_values,
                    logits=logit_bytes,
                ),
            )


def num_groups(*, dp: Array, tp: Array, pp: Array, cp: Array) -> Array:
    """Communicators of a rank: a pipeline has a second one for its tied ends, with tensor parallelism one over both."""
    piped = pp > 1
    return (dp > 1) * 1.0 + (tp > 1) + 2.0 * piped + (piped & (tp > 1)) + (cp > 1)


def outside_gib(values: Mapping[str, float]) -> float:
    """Device memory that the allocator does not see, for one row of `Columns`."""
    degrees = {name: np.asarray(values[name]) for name in ("dp", "tp", "pp", "cp")}
    return values["context_gib"] + COMMUNICATOR_GIB * float(num_groups(**degrees))


def peak_memory(c: Columns) -> PeakMemory:
    """The largest instant of each row."""
    best = code = cached = np.zeros(c.shape)
    backward = nothing = np.zeros(())
    for rank, phase, parts in _instants(c):
        total = parts.total
        code = np.where(total > best, float(4 * rank + phase), code)
        best = np.maximum(total, best)
        # The step's flat copies find no room in the cached blocks of activations, each a segment of its own.
        backward = parts.total if phase == BLOCK_BACKWARD else backward
        copies = parts.copies if phase == OPTIMIZER else nothing
        cached = np.maximum(cached, np.where(copies > 0, np.maximum(backward, total - copies) + copies, 0.0))
    allocated = best / GIB
    outside = c.context_gib + COMMUNICATOR_GIB * num_groups(dp=c.dp, tp=c.tp, pp=c.pp, cp=c.cp)
    return PeakMemory(
        allocated_gib=allocated,
        device_gib=np.maximum(best, cached) / GIB * (1 + FRAGMENTATION) + outside,
        needed_gib=allocated * (1 + c.rounding) + outside,
        phase=code % 4,
        binding_rank=code // 4,
    )


def peak_parts(c: Columns) -> MemoryParts:
    """GiB of each kind at the peak, for the few rows that are shown."""
    peak = peak_memory(c)
    sums = {field.name: np.zeros(c.shape) for field in dataclasses.fields(MemoryParts)}
    for rank, phase, parts in _instants(c):
        here = (peak.phase == phase) & (peak.binding_rank == rank)
        for name in sums:
            sums[name] = np.where(here, getattr(parts, name) / GIB, sums[name])
    return MemoryParts(**sums)
