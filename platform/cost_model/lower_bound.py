"""Bytes a rank cannot do without: a floor under the peak memory of one batch point, never above the truth.

The search skips a batch point when this floor alone exceeds the device or the cap. It is therefore built from what
must be held at one instant, and leaves out everything that an engine might free, fuse or recompute: allocator and
context overhead, communication buffers, optimizer temporaries, dropout masks, normalisation statistics.

Sources: ZeRO (arXiv 1910.02054, section 3.1) for the bytes of parameters, gradients and Adam states; "Reducing
Activation Recomputation" (arXiv 2205.05198, section 4.1) for what a transformer block saves, of which only the tensors
that a matrix product reads or writes are counted here, because a compiler may recompute the others.
"""

import dataclasses

from trainers.engines import is_path
from trainers.layout import BatchPoint, Layout
from trainers.recipe import Recipe

GIB = float(2**30)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LowerBound:
    """The parts of the floor, in GiB, all alive at the same instant of `phase` on the largest rank."""

    phase: str
    """"loss" (end of the forward pass), "block_backward" (one block's backward) or "optimizer"."""
    states_gib: float
    """Parameters as the engine stores them, master copies and optimizer states."""
    gradients_gib: float
    copies_gib: float
    """Low-precision or unsharded copies of parameters."""
    activations_gib: float
    logits_gib: float

    @property
    def total_gib(self) -> float:
        """All parts together."""
        return self.states_gib + self.gradients_gib + self.copies_gib + self.activations_gib + self.logits_gib

    @property
    def sentence(self) -> str:
        """Such as "at least 105.3 GiB a rank: states 79.0, gradients 26.3"; parts of nothing are left out."""
        parts = [
            f"{name} {value:.1f}"
            for name, value in (
                ("states", self.states_gib),
                ("gradients", self.gradients_gib),
                ("parameter copies", self.copies_gib),
                ("activations", self.activations_gib),
                ("logits", self.logits_gib),
            )
            if value >= 0.05
        ]
        return f"at least {self.total_gib:.1f} GiB a rank" + (f": {', '.join(parts)}" if parts else "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _StateBytes:
    """Bytes a parameter, by what divides them."""

    resident: float
    """Parameters and states, held through the whole step."""
    held_gradients: float
    """Gradients alive at the start of the last backward pass."""
    final_gradients: float
    """Gradients alive when the optimizer steps."""
    block_copies: float
    """Copies a parameter of the blocks that live at the end of the forward pass."""


def _itemsize(precision: str) -> int:
    return 2 if precision in ("bf16", "fp16") else 4


def _state_bytes(recipe: Recipe, layout: Layout, batch: BatchPoint) -> _StateBytes:
    """Bytes a parameter of one tensor-parallel, pipeline-parallel share (ZeRO, arXiv 1910.02054, section 3.1)."""
    state, compute = _itemsize(recipe.state_precision), _itemsize(recipe.compute_precision)
    moments = 2.0 * state if recipe.optimizer == "adamw" else 0.0  # Adafactor's factored states are thin vectors
    accumulates = batch.grad_accum > 1
    # DeepSpeed's stage 0 computes 16 bits by torch's autocast over fp32 weights, as DDP does.
    autocast = layout.engine == "deepspeed" and layout.zero_stage == 0 and compute < state
    # Engines may shard over the context-parallel axis too, so the floor divides by it.
    shard = layout.dp_shard * layout.cp
    if layout.engine == "ddp" or autocast:
        # DDP's bucket views hold the gradients from the first backward on.
        held = state if accumulates or layout.engine == "ddp" else 0.0
        # F.linear under autocast saves the low-precision weight for its backward pass; a compiler may cast again.
        copies = compute if compute < state and layout.compile == "none" and layout.checkpointing == "none" else 0.0
        resident = 0.0 if layout.offload == "all" else state
        resident += 0.0 if layout.offload != "none" else moments
        resident += state if recipe.powersgd_rank else 0.0  # the error feedback
        if layout.offload != "none":
            held = state = 0.0
        return _StateBytes(resident=resident, held_gradients=held, final_gradients=state, block_copies=copies)
    if layout.engine == "fsdp":
        on_device = 0.0 if layout.offload != "none" else 1.0
        resident = on_device * (state + moments) / shard
        # Without a reduction at every micro-step the unsharded gradients are summed, in the reduction's type.
        held = state if layout.grad_sync == "last" else on_device * state / shard
        copies = compute if layout.zero_stage == 2 and (shard > 1 or compute != state) else 0.0
        return _StateBytes(
            resident=resident,
            held_gradients=held if accumulates else 0.0,
            final_gradients=on_device * state / shard,
            block_copies=copies,
        )
    params = compute / (shard if layout.zero_stage == 3 else 1)
    if layout.offload == "all":
        params = 0.0
    masters = state if state > compute else 0.0
    sharded = shard if layout.zero_stage >= 1 else 1
    resident = params + (0.0 if layout.offload != "none" else (masters + moments) / sharded)
    gradients = compute / (shard if layout.zero_stage >= 2 else 1)
    final = gradients
    # Stage 1 in bf16 sums in fp32, in a buffer of its own that is there from the start.
    summing = layout.zero_stage == 1 and recipe.compute_precision == "bf16" and state > compute
    if layout.zero_stage in (1, 2) and masters:
        # The step flattens this rank's share of the gradients and casts it to fp32.
        final = state / shard
    if summing:
        gradients = final = float(state)
    if layout.offload != "none":
        # Stage 1 sums whole gradients on the device all the same; what stage 2 sums there depends on their type.
        gradients, final = gradients if layout.zero_stage == 1 else 0.0, 0.0
    return _StateBytes(
        resident=resident,
        held_gradients=gradients if accumulates or (summing and layout.offload == "none") else 0.0,
        final_gradients=final,
        block_copies=0.0,
    )


def _activation_bytes(recipe: Recipe, layout: Layout, batch: BatchPoint) -> tuple[float, float]:
    """Bytes (all blocks of an average stage, one block) that backward needs, for one micro-batch of one rank.

    A block's matrix products read its input, write queries, keys and values, read the attention's output, write the
    second residual and the feed-forward's inner values; eager attention keeps the probabilities too (arXiv 2205.05198,
    section 4.1, less everything a compiler can recompute). A checkpointed block keeps its input.
    """
    model, size = recipe.model, _itemsize(recipe.compute_precision)
    tokens = batch.micro_batch * recipe.seq_len / layout.cp / layout.tp
    kv = model.num_kv_heads * model.head_dim
    width = 4 * model.hidden_size + 2 * kv + (2 if model.gated else 1) * model.ffn_size
    probabilities = 0.0
    if layout.attention == "eager" and layout.compile == "none" and layout.cp == 1:
        probabilities = float(model.num_heads) * recipe.seq_len
    one_block = tokens * size * (width + probabilities)
    # A compiler under a budget may keep no more than a checkpoint does.
    every = layout.checkpoint_every if layout.activation_budget == 1 else 1
    checkpointed = -(-model.num_layers // every) if every else 0
    kept = checkpointed * tokens * size * model.hidden_size + (model.num_layers - checkpointed) * one_block
    return kept / layout.pp, one_block


def lower_bound(recipe: Recipe, layout: Layout, batch: BatchPoint) -> LowerBound:
    """The floor under one rank's peak memory, with its parts.

    The largest rank holds at least the average over tensor-parallel and pipeline ranks, so model parallelism divides
    everything evenly here. Three instants are looked at, the largest is returned.
    """
    if is_path(layout.engine):  # of an engine outside this project nothing is certain
        return LowerBound(
            phase="loss", states_gib=0.0, gradients_gib=0.0, copies_gib=0.0, activations_gib=0.0, logits_gib=0.0
        )
    model, compute = recipe.model, _itemsize(recipe.compute_precision)
    split = layout.tp * layout.pp
    bytes_each = _state_bytes(recipe, layout, batch)
    parameters = model.num_parameters / split
    block_parameters = model.num_layers * model.parameters_per_layer / split
    all_blocks, one_block = _activation_bytes(recipe, layout, batch)
    input_bytes = batch.micro_batch * recipe.seq_len / layout.cp / layout.tp * compute * model.hidden_size

    resident = parameters * bytes_each.resident
    held = parameters * bytes_each.held_gradients
    copies = block_parameters * bytes_each.block_copies
    unit_copies = 0.0
    gathers = layout.engine == "fsdp" or (layout.engine == "deepspeed" and layout.zero_stage == 3)
    if gathers and layout.zero_stage == 3 and layout.dp_shard > 1:
        unit_copies = model.parameters_per_layer / layout.tp * compute
    logits = 0.0
    if layout.loss == "plain" and layout.pp == 1:
        # The gradient stands beside what it is computed from, unless a compiler writes it in place.
        alive = 1 if layout.compile == "model" else 2
        logits = batch.micro_batch * recipe.seq_len / layout.cp * (model.vocab_size / layout.tp) * compute * alive
    # The last checkpointed block comes first in the backward pass only where every block is checkpointed.
    backward_block = one_block - input_bytes if layout.checkpoint_every == 1 else 0.0

    instants = (
        ("loss", resident, held, copies, all_blocks, logits),
        ("block_backward", resident, held, max(copies, unit_copies), all_blocks + backward_block, 0.0),
        ("optimizer", resident, parameters * bytes_each.final_gradients, 0.0, 0.0, 0.0),
    )
    phase, *parts = max(instants, key=lambda instant: sum(instant[1:]))
    states, gradients, held_copies, activations, loss = (part / GIB for part in parts)
    return LowerBound(
        phase=phase,
        states_gib=states,
        gradients_gib=gradients,
        copies_gib=held_copies,
        activations_gib=activations,
        logits_gib=loss,
    )


def lower_bound_gib(recipe: Recipe, layout: Layout, batch: BatchPoint) -> float:
    """GiB that the largest rank cannot do without; never above the measured peak."""
    return lower_bound(recipe, layout, batch).total_gib
