"""Bytes a rank cannot do without: a floor under the peak memory of one batch point, never above the truth.

The search skips a batch point when this floor alone exceeds the device or the cap. It is therefore built from what
must be held at one instant, and leaves out everything that an engine might free, fuse or recompute: allocator and
context overhead, communication buffers, optimizer temporaries, dropout masks, normalisation statistics.

Sources: ZeRO (arXiv 1910.02054, section 3.1) for the bytes of parameters, gradients and Adam states; "Reducing
Activation Recomputation" (arXiv 2205.05198, section 4.1) for what a transformer block saves, of which only the tensors
that a matrix product reads or writes are counted here, because a compiler may recompute the others.
"""

import dataclasses

from platform.cost_model.engines import costs
from platform.cost_model.engines.base import Sizes
from trainers.values.batch import BatchPoint
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe

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


NOTHING_CERTAIN = LowerBound(
    phase="loss", states_gib=0.0, gradients_gib=0.0, copies_gib=0.0, activations_gib=0.0, logits_gib=0.0
)
"""The floor of an engine that the model does not know."""


def _activation_bytes(recipe: Recipe, layout: Layout, batch: BatchPoint) -> tuple[float, float]:
    """Bytes (all blocks of an average stage, one block) that backward needs, for one micro-batch of one rank.

    A block's matrix products read its input, write queries, keys and values, read the attention's output, write the
    second residual and the feed-forward's inner values; eager attention keeps the probabilities too (arXiv 2205.05198,
    section 4.1, less everything a compiler can recompute). A checkpointed block keeps its input.
    """
    model, size = recipe.model, Sizes.of(recipe).compute
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
    model, compute = recipe.model, Sizes.of(recipe).compute
    engine = costs(layout.engine)
    if engine is None:
        return NOTHING_CERTAIN
    split = layout.tp * layout.pp
    bytes_each = engine.certain(recipe, layout, batch)
    parameters = model.num_parameters / split
    block_parameters = model.num_layers * model.parameters_per_layer / split
    all_blocks, one_block = _activation_bytes(recipe, layout, batch)
    input_bytes = batch.micro_batch * recipe.seq_len / layout.cp / layout.tp * compute * model.hidden_size

    resident = parameters * bytes_each.resident
    held = parameters * bytes_each.held_gradients
    copies = block_parameters * bytes_each.block_copies
    unit_copies = 0.0
    if bytes_each.gathers_blocks:
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
