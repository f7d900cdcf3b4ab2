"""Peak memory of the largest rank by phase, computed from columns, and the lower bound for pruning (`lower_bound`).

Sources: activations of a block, tensor by tensor: arXiv 2205.05198, section 4.1; micro-batches in flight: arXiv
2104.04473, section 2.2. Each engine's file in `engines` states its memory for parameters and gradients.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from platform.cost_model import adapters, blocks, constants
from platform.cost_model.columns import CHUNK_LOGITS, DEGREES, Array, Columns, checkpointed_share
from platform.cost_model.compute import unless_frozen
from platform.cost_model.engines import costs_of
from platform.cost_model.engines.base import NOTHING, Copies, PerParameter
from platform.cost_model.lower_bound import GIB, LowerBound, lower_bound
from platform.cost_model.mesh import Stages, first_outside, rank_parameters, stages_of
from platform.cost_model.offload import staging_bytes
from platform.cost_model.step_time import boundary_bytes, host_runs_ahead, residual_bytes
from trainers.spec.layout_axes import CUTTING

__all__ = ["PHASES", "LowerBound", "PeakMemory", "lower_bound", "peak_memory"]

PHASES = ("loss", "block_backward", "end_of_backward", "optimizer")
BLOCK_BACKWARD = 1

FRAGMENTATION = constants.number("memory", "FRAGMENTATION")
COMMUNICATOR_GIB = constants.number("memory", "COMMUNICATOR_GIB")
HELD_AT_FAILURE = constants.number("memory", "HELD_AT_FAILURE")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """GiB on the rank with the highest peak, and the phase and stage of the peak."""

    allocated_gib: Array
    device_gib: Array
    """Memory as nvidia-smi shows it: allocated with fragmentation, context and communicators."""
    first_allocated_gib: Array
    first_device_gib: Array
    """`device_gib` of a pipeline's first rank, which most software reports."""
    needed_gib: Array
    """Memory that must fit: allocated, context and communicators. The allocator returns cached blocks before it fails,
    so fragmentation makes a run slow (outcome "thrash") before it ends the run.
    """
    pooled_gib: Array
    """`needed_gib` plus the blocks that the allocator's pools cannot share: a block stays with the stream that
    allocated it (PyTorch, `CUDACachingAllocator.cpp`). FSDP2 allocates sharded gradients on its reduction stream;
    unsharded sums are freed into another stream's pool. With less memory, blocks are freed and allocated again at each
    step: one H200, 114 to 125 GiB allocated, 139 reserved and 12 retries; four, 8.7 more reserved than allocated (this
    project).
    """
    phase: Array
    """Index into `PHASES`."""
    binding_rank: Array
    """0 for the first pipeline stage, 1 for a middle one, 2 for the last; 0 without a pipeline."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """The memory of one rank at one instant, in GiB (in bytes during the computation)."""

    states: Array
    gradients: Array
    copies: Array
    """Unsharded, low-precision or flat copies of parameters and gradients, and buckets."""
    activations: Array
    logits: Array

    @property
    def total(self) -> Array:
        return self.resident + self.copies + self.activations + self.logits

    @property
    def resident(self) -> Array:
        """Memory held during the whole step, in a few large blocks."""
        return self.states + self.gradients


def _block_bytes(c: Columns) -> tuple[Array, Array, Array, Array]:
    """Returns bytes of one block for one micro-batch, mean over a model's blocks: (everything that it saves, what of it
    stays with an activation budget, what stays with full checkpointing, transients of its backward pass).
    """
    held = _held_gathered(c)
    saved, transient = blocks.mean(c, lambda kind: kind.saved_bytes(c, held))
    if c.has_adapters:
        of_adapters, beside = adapters.saved_bytes(c)
        saved, transient = saved + of_adapters, transient + beside
    split = np.where(c.sequence_parallel > 0, c.parts("width"), 1.0)
    block_input = c.tokens * blocks.residual_value_bytes(c) * c.hidden / split
    kept, checkpoint = blocks.mean(c, lambda kind: kind.kept_bytes(c, saved, block_input))
    return saved, kept, checkpoint, transient


def _held_gathered(c: Columns) -> Array:
    """Returns the share of gathered inputs that stay unsharded, because autograd saves them or the stack keeps them.

    If the stack keeps them, a collective's memory belongs to its stream until the device has run it. If the device
    waits for its host, these blocks are free for the next collective (`CUDACachingAllocator.cpp`), except in the passes
    at the start of a pipeline, which run without waiting: of `pp` micro-batches in flight all but the first and the
    last.
    """
    saved = c.software.saves_gathered
    if not np.any(c.software.keeps_gathered > 0):
        return saved
    begun = np.maximum(1 - 2 / np.minimum(c.parts("depth"), c.grad_accum), 0.0)
    return np.where(c.software.keeps_gathered > 0, np.maximum(saved, np.where(host_runs_ahead(c), 1.0, begun)), saved)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Activations:
    """Bytes that blocks save for the backward pass of one micro-batch."""

    of_block: Array
    """Bytes saved per block, averaged over checkpointed and other blocks."""
    again: Array
    """Recomputed activations and transients while one block's backward pass runs."""
    of_stage: Array
    """Bytes saved for each micro-batch in flight in addition to the blocks' bytes."""


def _activations(c: Columns) -> _Activations:
    everything, saved, checkpoint, transient = _block_bytes(c)
    full, spans = c.full_checkpointing > 0, c.software.checkpoint_blocks
    share = np.where(full, checkpointed_share(c), 0.0)
    # A rank keeps the values that it sends, in the type of the residual stream, until their gradient arrives (torch's
    # `fwd_cache`).
    sent = np.where((c.own_mesh > 0) & c.is_piped, residual_bytes(c) / c.parts("width"), 0.0)
    return _Activations(
        of_block=share * checkpoint * c.software.checkpoint_device_share / spans + (1 - share) * saved,
        again=np.where(full, saved * spans - checkpoint, 0.0) + transient + everything - saved,
        of_stage=costs_of(c).stage_buffers(c, boundary_bytes(c)) + sent + c.micro_batch * c.mask_bytes,
    )


def _logit_bytes(c: Columns) -> Array:
    """Returns the bytes at the loss. A chunked loss sums the table's gradient in fp32; from the second chunk on, the
    chunk's gradient is held in addition.
    """
    count = c.tokens * (c.vocab / c.parts("width"))
    sums = unless_frozen(c, 4.0 * c.vocab / c.parts("width") * c.hidden)
    in_chunks = np.minimum(count, CHUNK_LOGITS) * c.logit_bytes + np.where(count > CHUNK_LOGITS, 2 * sums, sums)
    return np.where(c.chunked_loss > 0, in_chunks, count * c.logit_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """A rank of a pipeline's first, middle or last stage; without a pipeline the first stage is the whole model."""

    exists: Array
    """1 if the pipeline has this rank, else 0."""
    parameters: Array
    layers: Array
    in_flight: Array
    """Micro-batches whose activations the rank keeps."""
    logits: Array
    outside: Array
    """Parameters outside the blocks."""
    has_table: bool


def _ranks(c: Columns, stages: Stages, owned: Array) -> tuple[_Rank, _Rank, _Rank]:
    piped, num_ranks = c.is_piped, c.parts("depth")
    block, outside = c.rank_block, c.embedding_parameters / c.parts("width")
    logits = _logit_bytes(c)

    def in_flight(rank: Array | float) -> Array:
        """Returns the micro-batches in flight on the pipeline's `rank`. An interleaved schedule counts them per virtual
        stage; the count is divided by the number of virtual stages (Megatron-LM, `schedules.py`: the warm-up of its
        interleaved schedule).
        """
        begun = num_ranks - rank
        chunks = 2 * (begun - 1) + (c.axes["virtual"] - 1) * num_ranks + 1
        # In published runs this holds only for the first rank: some start fewer micro-batches (arXiv 2407.21783,
        # section 3.3.2).
        interleaved = (c.axes["virtual"] > 1) & ((c.largest_blocks > 0) | (np.asarray(rank) == 0))
        return np.minimum(np.where(interleaved, chunks / c.axes["virtual"], begun), c.grad_accum)

    head = np.where(c.tied > 0, c.embedding_parameters, c.table_parameters) / c.parts("width")
    first = _Rank(
        exists=np.ones(()),
        parameters=np.where(piped, stages.first * block + first_outside(c), owned),
        layers=np.where(piped, stages.first, c.layers),
        in_flight=np.where(piped, in_flight(0.0), 1.0),
        logits=np.where(piped, 0.0, logits),
        outside=np.where(piped, first_outside(c), outside),
        has_table=True,
    )
    middle = _Rank(
        exists=np.where(num_ranks > 2, 1.0, 0.0),
        parameters=stages.largest * block,
        layers=stages.largest,
        in_flight=np.maximum(in_flight(1.0), 0.0),
        logits=NOTHING,
        outside=outside * 0.0,
        has_table=False,
    )
    last = _Rank(
        exists=np.where(piped, 1.0, 0.0),
        parameters=stages.last * block + head,
        layers=stages.last,
        in_flight=np.where(piped, in_flight(num_ranks - 1.0), 1.0),
        logits=logits,
        outside=head,
        has_table=True,
    )
    return first, middle, last


def _instants(c: Columns) -> Iterator[tuple[int, int, Array, MemoryParts]]:
    """Yields (rank, phase, bytes of single large tensors, bytes held) for each instant that may be the peak: each phase
    on a pipeline's first, middle and last stage. Large tensors are larger than all earlier ones. Missing stages hold
    nothing.
    """
    engine, stages = costs_of(c), stages_of(c)
    owned, _ = rank_parameters(c, stages)
    ranks = _ranks(c, stages, owned)
    per, activations = engine.per_parameter(c), _activations(c)
    buckets, table = engine.buckets(c, owned), engine.table_gradient(c)
    all_copies = engine.copies(c, [(rank.outside, rank.logits) for rank in ranks])
    for number, (rank, copies) in enumerate(zip(ranks, all_copies, strict=True)):
        if np.any(rank.exists):
            lookup = table if rank.has_table else NOTHING
            trained = c.trained(rank.parameters)
            resident = c.frozen(rank.parameters) * per.frozen + trained * per.resident
            resident = resident + staging_bytes(c, trained / engine.optimizer_ranks(c))
            phases = _phases(
                dataclasses.replace(rank, parameters=trained),
                per,
                copies,
                activations,
                resident * rank.exists,
                buckets * rank.exists,
                lookup * rank.exists,
            )
            for phase, (large, parts) in enumerate(phases):
                yield number, phase, large, parts


def _phases(
    rank: _Rank,
    per: PerParameter,
    copies: Copies,
    activations: _Activations,
    states: Array,
    buckets: Array,
    lookup: Array,
) -> Iterator[tuple[Array, MemoryParts]]:
    """Yields (bytes of single large tensors, bytes held) in each of `PHASES` on one rank, whose `parameters` are the
    trained ones; `states` are the bytes of all parameters and states.
    """
    exists = rank.exists
    owned = rank.parameters * exists
    held, final = owned * per.held_gradients, owned * per.final_gradients
    saved = rank.in_flight * (rank.layers * activations.of_block + activations.of_stage) * exists
    # While one micro-batch ends its backward pass, the others in flight keep their saved activations.
    others = np.maximum(rank.in_flight - 1, 0.0) * rank.layers * activations.of_block * exists
    is_last = copies.at_last_end > copies.at_end + others
    others = np.where(is_last, 0.0, others)
    at_end = np.where(is_last, copies.at_last_end, copies.at_end)
    step = owned * per.step_copies

    def parts(gradients: Array, copied: Array, saved: Array, logits: Array = NOTHING) -> MemoryParts:
        return MemoryParts(states=states, gradients=gradients, copies=copied, activations=saved, logits=logits)

    yield NOTHING, parts(held, copies.at_loss * exists + buckets, saved, rank.logits * exists)
    yield NOTHING, parts(held, copies.in_block * exists + buckets, saved + activations.again * exists)
    yield lookup, parts(np.maximum(final, held), at_end * exists + buckets + lookup, others)
    yield step, parts(final, step, NOTHING)


def num_groups(degrees: Mapping[str, Array]) -> Array:
    """Returns the number of communicators of a rank from its degrees. A pipeline adds a second one for its tied ends
    and, with tensor parallelism, one over both axes.
    """
    piped, across = (np.any([degrees[name] > 1 for name in CUTTING[cut]], axis=0) for cut in ("depth", "width"))
    return sum((degree > 1 for degree in degrees.values()), 1.0 * piped) + (piped & across)


def outside_gib(values: Mapping[str, float]) -> float:
    """Returns the device memory outside the allocator for one row of `Columns`."""
    degrees = {name: np.asarray(values[name]) for name in DEGREES}
    return values["context_gib"] + COMMUNICATOR_GIB * float(num_groups(degrees))


def peak_memory(c: Columns) -> PeakMemory:
    """Returns the peak of each row: the instant with the most memory."""
    peak, saved, keeps = _peak(c), c.software.saves_gathered, c.software.keeps_gathered > 0
    if not np.any(keeps):
        return peak
    # Before it fails, the allocator waits for all streams and returns unused segments (`release_cached_blocks`).
    certain = np.where(keeps, np.maximum(saved, HELD_AT_FAILURE), saved)
    software = dataclasses.replace(c.software, saves_gathered=certain, keeps_gathered=np.zeros(()))
    must_fit = _peak(dataclasses.replace(c, software=software))
    return dataclasses.replace(peak, needed_gib=must_fit.needed_gib, pooled_gib=must_fit.pooled_gib)


def _peak(c: Columns) -> PeakMemory:
    best = code = cached = first = first_cached = rounded = np.zeros(c.shape)
    backward = resident = np.zeros(())
    uneven = np.any(c.software.transient_rounding != c.software.rounding)
    for rank, phase, large, parts in _instants(c):
        total = parts.total
        higher = total > best
        code = np.where(higher, float(4 * rank + phase), code)
        best = np.where(higher, total, best)
        if uneven:
            tails = c.software.rounding * parts.resident + c.software.transient_rounding * (total - parts.resident)
            rounded = np.maximum(rounded, total + tails)
        resident = np.maximum(resident, parts.states)
        if phase <= BLOCK_BACKWARD:
            backward = total
        elif np.any(large):
            # Large tensors do not fit into cached blocks of activations, each of which is a segment of its own.
            cached = np.maximum(cached, np.where(large > 0, np.maximum(backward, total - large) + large, 0.0))
        if rank == 0:
            first, first_cached = best, cached
    allocated = best / GIB
    outside = c.context_gib + COMMUNICATOR_GIB * num_groups(c.degrees)
    needed = (rounded / GIB if uneven else allocated * (1 + c.software.rounding)) + outside
    if c.has_adapters:
        filled = (resident + adapters.filling_bytes(c)) / GIB * (1 + c.software.rounding) + outside
        needed = np.where(c.adapter_rank > 0, np.maximum(needed, filled), needed)
    owned, _ = rank_parameters(c, stages_of(c))
    return PeakMemory(
        allocated_gib=allocated,
        device_gib=np.maximum(best, cached) / GIB * (1 + FRAGMENTATION) + outside,
        first_allocated_gib=first / GIB,
        first_device_gib=np.maximum(first, first_cached) / GIB * (1 + FRAGMENTATION) + outside,
        needed_gib=needed,
        pooled_gib=needed + costs_of(c).unpooled(c, owned) / GIB,
        phase=code % 4,
        binding_rank=code // 4,
    )


def peak_parts(c: Columns) -> MemoryParts:
    """Returns the GiB of each kind at the peak, for the few rows that are shown."""
    peak = peak_memory(c)
    sums = {field.name: np.zeros(c.shape) for field in dataclasses.fields(MemoryParts)}
    for rank, phase, _, parts in _instants(c):
        at_peak = (peak.phase == phase) & (peak.binding_rank == rank)
        for name in sums:
            sums[name] = np.where(at_peak, getattr(parts, name) / GIB, sums[name])
    return MemoryParts(**sums)
