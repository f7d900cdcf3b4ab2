"""Cuts a model into pipeline stages of nearly equal cost, by arithmetic alone. Imports no torch.

Stage s of pp x virtual runs on pipeline rank s mod pp, so with virtual stages a rank has several non-adjacent ones
(interleaved 1F1B, arXiv 2104.04473).
"""

import dataclasses
import itertools
from collections.abc import Iterator

from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_FLOPS_PER_BYTE = 300.0
"""FLOPs that a device can do while it moves a byte: an H100's 989 TFLOP/s / 3.35 TB/s."""
_EMBEDDING_BYTES = 16.0
"""Bytes moved per value of a token's embedding: read and written in the forward pass; read, added and written in the
backward pass.
"""
_BLOCK_BYTES = 100.0
"""Bytes moved in a block per value of a token's hidden state: the 34 bytes of activations that a block saves in 16 bits
(arXiv 2205.05198, equation 1) are written, read, and have gradients of the same size.
"""
_LOGIT_BYTES = 20.0
"""Bytes moved per logit: written in 16 bits, read and written in fp32, read for the loss; the same again for its
gradient.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A pipeline stage: consecutive blocks; the first stage has the embeddings too, the last the final norm and the
    head.
    """

    index: int
    num_stages: int
    blocks: range
    """Indices of its blocks in the whole model."""

    @property
    def has_embeddings(self) -> bool:
        """Whether its input is tokens instead of hidden states."""
        return self.index == 0

    @property
    def has_head(self) -> bool:
        """Whether its output is the loss instead of hidden states."""
        return self.index == self.num_stages - 1


def num_stages(layout: LayoutAxes) -> int:
    return layout.pp * layout.virtual


def stages_of(recipe: Recipe, layout: LayoutAxes) -> tuple[Stage, ...]:
    """Returns all stages of the pipeline in the order in which they run; one stage without a pipeline."""
    blocks = blocks_of_stages(recipe.model, recipe.seq_len, layout.checkpointing, layout.pp, layout.virtual)
    ends = list(itertools.accumulate(blocks))
    return tuple(
        Stage(index=stage, num_stages=len(blocks), blocks=range(end - blocks[stage], end))
        for stage, end in enumerate(ends)
    )


def blocks_of_stages(spec: ModelSpec, seq_len: int, checkpointing: str, pp: int, virtual: int) -> tuple[int, ...]:
    """Returns the number of blocks of each stage, in the order in which stages run.

    Minimises the work of the busiest rank, then of the busiest stage of a rank. Among equal stages the later one gets
    more blocks, because an earlier one holds the activations of more micro-batches.
    """
    count = pp * virtual
    if count == 1:
        return (spec.num_layers,)
    block = block_cost(spec, seq_len, checkpointing)
    loads = [0.0] * count
    loads[0], loads[-1] = _FLOPS_PER_BYTE * _EMBEDDING_BYTES * spec.hidden_size, head_cost(spec)
    blocks = [0] * count

    def add(stage: int) -> None:
        blocks[stage] += 1
        loads[stage] += block

    for stage in range(1, count - 1):  # the first and the last stage have work without any block
        add(stage)
    for _ in range(spec.num_layers - sum(blocks)):
        add(min(range(count), key=lambda stage: (sum(loads[stage % pp :: pp]), loads[stage], -stage)))
    return tuple(blocks)


def stages_of_rank(recipe: Recipe, layout: LayoutAxes, pipeline_rank: int) -> tuple[Stage, ...]:
    """Returns the stages that run on that coordinate of the pipeline axis, in the order of the model."""
    return stages_of(recipe, layout)[pipeline_rank :: layout.pp]


def block_cost(spec: ModelSpec, seq_len: int, checkpointing: str) -> float:
    """Returns a token's cost in an average block, forward and backward, in FLOPs; bytes moved count as the FLOPs
    possible in the same time.

    A checkpointed block runs its forward pass twice.
    """
    core = 2 * spec.attention_width * spec.keys_per_query(seq_len)
    parameters = spec.over_blocks(lambda kind: kind.parameters(spec)) / spec.num_layers
    forward = 2.0 * (parameters + core)
    recomputed = {"full": 1.0, "every_2": 0.5, "every_4": 0.25}.get(checkpointing, 0.0)
    return (1.0 + recomputed / 3.0) * (3.0 * forward + _FLOPS_PER_BYTE * _BLOCK_BYTES * spec.hidden_size)


def head_cost(spec: ModelSpec) -> float:
    """Returns a token's cost in the head and its loss, forward and backward, in the FLOPs of `block_cost`."""
    return spec.vocab_size * (6.0 * spec.hidden_size + _FLOPS_PER_BYTE * _LOGIT_BYTES)


def schedule_contradictions(layout: LayoutAxes) -> Iterator[str]:
    """Yields a sentence for each contradiction between schedule, virtual stages and pipeline degree."""
    if layout.schedule != "1f1b" and layout.pp == 1:
        yield f"schedule {layout.schedule} needs a pipeline, got pp 1: choose pp 2 or more, or 1f1b"
    if (layout.schedule == "interleaved") != (layout.virtual > 1):
        yield (
            "schedule interleaved goes with virtual 2 or more and 1f1b with virtual 1, got schedule"
            f" {layout.schedule} and virtual {layout.virtual}"
        )


def schedule_refusal(layout: LayoutAxes, grad_accum: int) -> str:
    """Returns the reason why the schedule of `layout` cannot run `grad_accum` micro-batches; empty if it can."""
    if grad_accum < layout.pp:
        return (
            f"a pipeline of {layout.pp} stages needs as many micro-batches a step at least, got {grad_accum}:"
            " choose a smaller micro_batch or pp"
        )
    if layout.schedule == "interleaved" and grad_accum % layout.pp:
        return (
            f"an interleaved schedule runs its micro-batches in rounds of pp {layout.pp}, got {grad_accum} a step:"
            f" choose a micro_batch that gives a multiple of {layout.pp}, or schedule 1f1b"
        )
    return ""


def timed_accumulations(layout: LayoutAxes, grad_accum: int) -> tuple[int, ...]:
    """Returns the accumulation counts to time, ascending: two if the slope between them gives a micro-step's time, else
    one.

    From 2 x pp micro-steps on, every rank reaches a steady state in which each further micro-step takes the same time.
    """
    largest = min(grad_accum, 4 * layout.pp) if layout.pp > 1 else grad_accum
    return (2 * layout.pp, largest) if largest > 2 * layout.pp > 2 else (largest,)


def bubble_of_equal_stages(layout: LayoutAxes, grad_accum: int) -> float:
    """Returns the share of a schedule in which stages of equal length wait: (p - 1) / (v m + p - 1)."""
    return (layout.pp - 1) / (layout.virtual * grad_accum + layout.pp - 1)


def stages_at(layout: LayoutAxes, rank: int) -> tuple[int, ...]:
    """Returns the indices of the stages that a global rank runs; empty without a pipeline."""
    return tuple(range(layout.coordinates(rank)["pp"], num_stages(layout), layout.pp)) if layout.pp > 1 else ()
