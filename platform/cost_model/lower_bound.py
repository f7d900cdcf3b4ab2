"""Lower bound of the peak memory per rank of one batch point, never above the true value.

The search skips a batch point if this bound alone exceeds the device or the cap. The bound therefore counts only
tensors that must be held at one instant, and leaves out everything that an engine might free, fuse or recompute:
allocator and context overhead, communication buffers, optimizer temporaries, dropout masks, normalisation statistics.

Sources: ZeRO (arXiv 1910.02054, section 3.1) for the bytes of parameters, gradients and Adam states; "Reducing
Activation Recomputation" (arXiv 2205.05198, section 4.1) for the saved tensors of a transformer block. Only tensors
that a matrix product reads or writes count, because a compiler may recompute the others.
"""

import dataclasses
from collections.abc import Iterator

from platform.cost_model.engines import costs
from platform.cost_model.engines.base import Sizes
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import stages_of

GIB = float(2**30)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LowerBound:
    """Parts of the lower bound, GiB, all held at the same instant of `phase` on the largest rank."""

    phase: str
    """"loss" (end of the forward pass), "block_backward" (one block's backward pass) or "optimizer"."""
    states_gib: float
    """Parameters as stored by the engine, master copies and optimizer states."""
    gradients_gib: float
    copies_gib: float
    """Low-precision or unsharded copies of parameters."""
    activations_gib: float
    logits_gib: float

    @property
    def total_gib(self) -> float:
        return self.states_gib + self.gradients_gib + self.copies_gib + self.activations_gib + self.logits_gib

    @property
    def sentence(self) -> str:
        """Text such as "at least 105.3 GiB per rank: states 79.0, gradients 26.3"; empty parts are left out."""
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
"""The lower bound for an engine that the model does not know."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """One rank of a pipeline, with its least memory; every rank if there is no pipeline."""

    blocks: float
    outside: float
    """Parameters outside the blocks."""
    checkpointed: float
    """Largest number of the rank's blocks that may be checkpointed."""
    in_flight: float
    """Micro-batches whose activations the rank holds before its first backward pass."""
    has_loss: bool


def _ranks(recipe: Recipe, layout: Layout, batch: BatchPoint) -> Iterator[_Rank]:
    model = recipe.model
    # A compiler with a budget may keep no more than full checkpointing does.
    every = layout.checkpoint_every if layout.activation_budget == 1 else 1
    stages = stages_of(recipe, layout)
    table = model.vocab_size * model.hidden_size
    num_ranks = layout.parts("depth")
    for rank in range(num_ranks):
        rank_stages = stages[rank::num_ranks]
        outside = 0.0
        if rank_stages[0].has_embeddings:
            outside += model.embedding_parameters
            if num_ranks > 1:  # the last rank has the last norm, and the head's table unless it is tied
                outside -= 2 * model.hidden_size + (0 if model.tied_embeddings else table)
        if rank_stages[-1].has_head and num_ranks > 1:
            outside += table
        begun = num_ranks - rank
        if layout.virtual > 1:  # counted in virtual stages of the smallest size
            chunks = 2 * (begun - 1) + (layout.virtual - 1) * num_ranks + 1
            smallest = min(len(stage.blocks) for stage in rank_stages) * layout.virtual
            begun = chunks / layout.virtual * smallest / max(1, sum(len(stage.blocks) for stage in rank_stages))
        yield _Rank(
            blocks=sum(len(stage.blocks) for stage in rank_stages),
            outside=outside,
            checkpointed=sum(-(-len(stage.blocks) // every) for stage in rank_stages) if every else 0.0,
            in_flight=min(begun, batch.grad_accum),
            has_loss=rank_stages[-1].has_head,
        )


def _activation_bytes(recipe: Recipe, layout: Layout, batch: BatchPoint, rank: _Rank) -> tuple[float, float]:
    """Returns the bytes (all blocks of `rank`, one block) that the backward pass needs for one micro-batch.

    A block keeps the inputs and outputs of its matrix products; eager attention also saves the probabilities (arXiv
    2205.05198, section 4.1, without everything that a compiler can recompute). A checkpointed block keeps its input.
    """
    model, size = recipe.model, Sizes.of(recipe).compute
    tokens = batch.micro_batch * recipe.seq_len / layout.parts("tokens") / layout.parts("width")
    width = min(kind.saved_width(model) for kind, _ in model.blocks)
    probabilities = 0.0
    if layout.attention == "eager" and layout.compile == "none" and layout.parts("tokens") == 1:
        probabilities = float(model.num_heads) * recipe.seq_len
    one_block = tokens * size * (width + probabilities)
    # Layers before the first adapter have no gradient.
    saving = max(0.0, rank.blocks - rank.checkpointed - (1 if recipe.adapter_rank else 0))
    saved = rank.checkpointed * tokens * size * model.hidden_size + saving * one_block
    return saved, one_block


def lower_bound(recipe: Recipe, layout: Layout, batch: BatchPoint) -> LowerBound:
    """Returns the lower bound of the largest rank's peak memory, with its parts.

    Each tensor-parallel rank holds at least its part; each pipeline rank holds its stages.
    """
    if costs(layout.engine) is None:
        return NOTHING_CERTAIN
    bounds = (_rank_bound(recipe, layout, batch, rank) for rank in _ranks(recipe, layout, batch))
    return max(bounds, key=lambda bound: bound.total_gib)


def _rank_bound(recipe: Recipe, layout: Layout, batch: BatchPoint, rank: _Rank) -> LowerBound:
    model, compute = recipe.model, Sizes.of(recipe).compute
    engine = costs(layout.engine)
    assert engine is not None
    bytes_each = engine.certain(recipe, layout, batch)
    width, tokens = layout.parts("width"), batch.micro_batch * recipe.seq_len / layout.parts("tokens")
    block = min(kind.parameters(model) for kind, _ in model.blocks) / width
    block_parameters = rank.blocks * block
    parameters = block_parameters + rank.outside / width
    of_micro_batch, one_block = _activation_bytes(recipe, layout, batch, rank)
    input_bytes = tokens / width * compute * model.hidden_size

    trained = 0.0 if recipe.adapter_rank else parameters  # adapters are few
    resident = trained * bytes_each.resident + (parameters - trained) * bytes_each.frozen
    held = trained * bytes_each.held_gradients
    copies = block_parameters * bytes_each.block_copies
    unit_copies = block * bytes_each.unit_copies
    logits = 0.0
    if layout.loss == "plain" and rank.has_loss:
        # The gradient exists in addition to the logits, unless a compiler writes it in place.
        alive = 1 if layout.compile == "model" else 2
        logits = tokens * (model.vocab_size / width) * compute * alive
    # The last checkpointed block is first in the backward pass only if every block is checkpointed.
    backward_block = one_block - input_bytes if layout.checkpoint_every == 1 and rank.blocks else 0.0
    # Gradients are held from the second backward pass on, when possibly one micro-batch fewer remains to start.
    first, second = (of_micro_batch * count for count in (rank.in_flight, min(rank.in_flight, batch.grad_accum - 1)))
    passes = [(first, 0.0), (second, held)] if layout.parts("depth") > 1 else [(first, held)]

    instants: list[tuple[str, float, float, float, float, float]] = []
    for saved, gradients in passes:
        instants.append(("loss", resident, gradients, copies, saved, logits))
        gathered = max(copies, unit_copies)
        instants.append(("block_backward", resident, gradients, gathered, saved + backward_block, 0.0))
    instants.append(("optimizer", resident, trained * bytes_each.final_gradients, 0.0, 0.0, 0.0))
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
