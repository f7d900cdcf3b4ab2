"""Costs of tensor, pipeline and context parallelism with any engine."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.cost_model import degrees
from platform.cost_model.columns import CHUNK_LOGITS, Array, Columns, Mask, checkpointed_share
from platform.cost_model.engines.exchange import slowdown
from platform.cost_model.layout_arrays import LayoutArrays
from platform.cost_model.links import Boundaries, Ring, devices_of, inside
from trainers.spec.layout_axes import CUTTING
from trainers.spec.model import ModelSpec
from trainers.spec.stages import blocks_of_stages


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Blocks of a pipeline's ranks, summed over each rank's virtual stages."""

    largest: Array
    """Blocks of the rank with the most."""
    first: Array
    last: Array


def blocks_of_ranks(model: ModelSpec, seq_len: int, layouts: LayoutArrays) -> dict[str, Array]:
    """Returns the columns of `Stages` as this project's trainers split the model."""
    pp, virtual = np.broadcast_arrays(layouts.parts("depth"), layouts.numbers("virtual"))
    if np.all(pp == 1):
        return {name: np.asarray(float(model.num_layers)) for name in STAGE_COLUMNS}
    words, word_of_row = layouts.distinct("checkpointing")
    pairs, pair_of_row = np.unique(np.stack([pp.ravel(), virtual.ravel()]), axis=1, return_inverse=True)
    table = np.array(
        [[_rank_blocks(model, seq_len, word, int(pair[0]), int(pair[1])) for pair in pairs.T] for word in words]
    )
    sizes = table[word_of_row, pair_of_row.reshape(pp.shape)]
    return {name: sizes[..., place] for place, name in enumerate(STAGE_COLUMNS)}


STAGE_COLUMNS = ("largest_blocks", "first_blocks", "last_blocks")


def _rank_blocks(model: ModelSpec, seq_len: int, checkpointing: str, pp: int, virtual: int) -> tuple[int, int, int]:
    """Returns (most blocks of a rank, blocks of the first, of the last)."""
    stages = blocks_of_stages(model, seq_len, checkpointing, pp, virtual)
    ranks = [sum(stages[rank::pp]) for rank in range(pp)]
    return max(ranks), ranks[0], ranks[-1]


def stages_of(columns: Columns) -> Stages:
    """Returns the ranks' blocks, as stated or estimated.

    Published runs do not state them. The split is even if the pipeline degree divides the blocks. Otherwise embedding
    and head count as one block each, if the split is then even (DeepSpeed's
    `partition_method="type:transformer|embedding"`). Otherwise some ranks have one more block.
    """
    layers, pp = columns.layers, columns.pp
    even = layers % pp == 0
    with_ends = ~even & ((layers + 2) % pp == 0)
    largest = np.where(with_ends, (layers + 2) / pp, np.ceil(layers / pp))
    ends = np.where(with_ends, (layers + 2) / pp - 1, np.where(even, layers / pp, np.floor(layers / pp)))
    # In a split by arithmetic the head, a product of the vocabulary's width, counts as several blocks of the last
    # stage.
    head = columns.table_parameters / columns.layer_parameters
    share = np.ceil((layers + head) / pp)
    by_cost = (columns.software.cuts_by_cost > 0) & (pp > 1)
    first = np.where(by_cost, np.minimum(share, layers), ends)
    last = np.where(by_cost, np.maximum(layers - share * (pp - 1), 0.0), ends)
    largest = np.where(by_cost, first, largest)
    stated = columns.largest_blocks > 0
    return Stages(
        largest=np.where(stated, columns.largest_blocks, np.where(pp == 1, layers, largest)),
        first=np.where(stated, columns.first_blocks, first),
        last=np.where(stated, columns.last_blocks, last),
    )


def rank_parameters(columns: Columns, stages: Stages) -> tuple[Array, Array]:
    """Returns the parameters (of the largest rank, of its blocks alone): the first stage has the embedding, the last
    the head.

    A tied table is on both ends of a pipeline.
    """
    c = columns
    blocks = stages.largest * c.rank_block
    all_parameters = c.layers * c.rank_block + c.embedding_parameters / c.tp
    first = stages.first * c.rank_block + first_outside(c)
    last = stages.last * c.rank_block + np.where(c.tied > 0, c.embedding_parameters, c.table_parameters) / c.tp
    largest = np.maximum(blocks, np.maximum(first, last))
    return np.where(c.is_piped, largest, all_parameters), np.where(c.is_piped, blocks, c.layers * c.rank_block)


def first_outside(c: Columns) -> Array:
    """Returns the parameters outside the blocks on a pipeline's first rank: without the head's, unless it is tied."""
    return np.where(c.tied > 0, c.embedding_parameters, c.embedding_parameters - c.table_parameters) / c.tp


def tensor_s(c: Columns, boundary: Array, full: Mask, first_products: Sequence[Array] = ()) -> Array:
    """Returns the seconds of tensor-parallel collectives of one block and micro-batch. `first_products` are the forward
    seconds of the products whose inputs sequence parallelism gathers.

    Each pass has two all-reduces of the residual (Megatron-LM, arXiv 1909.08053, section 3). With sequence parallelism
    the same volume is gathered and scattered (arXiv 2205.05198, 4.2.2); between nodes this uses the whole ring, whereas
    an all-reduce may use a tree. Compute and collectives wait for each other, except for a stack's overlap.

    A stack that stores each rank's part of those inputs gathers them again in the backward pass, beside the product of
    their gradient, and scatters the gradient beside the product of the weights' (2205.05198, 4.2.2): ten gathers and
    scatters in place of eight, of which four are hidden as far as these products last.

    This project's blocks gather twice and scatter twice in each pass, in separate collectives. Recomputation repeats
    both gathers; recomputing a whole block also repeats the scatter of attention's output. Compiled code has equally
    many.
    """
    ring = Ring.along(c, *CUTTING["width"])
    reduced = ring.all_reduce_s(boundary)
    around = (c.sequence_parallel > 0) & (ring.ranks > ring.in_node)
    exchange_s = np.where(around, np.maximum(2 * ring.gather_s(boundary), reduced), reduced)
    apart = 8.0 + np.where(full, 3.0 * checkpointed_share(c), 2.0 * c.selective_checkpointing)
    # A gather of casts moves one byte per value; the scatter still moves 16 bits.
    exchange_s = exchange_s * np.where(cast_ranks(c) > 1, (1 + 1 / c.compute_bytes) / 2, 1.0)
    published = exchange_s * np.where(full, 6.0, 4.0)
    beside = sum((2 * np.minimum(exchange_s / 2, seconds) for seconds in first_products), np.zeros(()))
    again = exchange_s - beside * (1 - slowdown(c, ring))
    gathers_again = (c.software.gathers_again > 0) & (c.sequence_parallel > 0) & (c.software.tensor_overlap == 0)
    published = published + np.where(gathers_again, again, 0.0)
    total = np.where(c.own_mesh > 0, apart * ring.gather_s(boundary), published)
    return total * (1 - c.software.tensor_overlap)


def cast_ranks(c: Columns) -> Array:
    """Returns the number of ranks that share the FP8 casts of gathered values: TransformerEngine casts each rank's part
    of the sequence before the gather (transformer_engine/pytorch/module/layernorm_linear.py,
    `with_quantized_all_gather`).
    """
    return np.where((c.software.keeps_casts > 0) & (c.cast_bytes > 0) & (c.sequence_parallel > 0), c.tp, 1.0)


def vocabulary_s(c: Columns, boundary: Array, residual: Array) -> Array:
    """Returns the seconds per micro-batch of the collectives for a vocabulary split over tensor-parallel ranks.

    The embedding's output and the gradient of the head's input are all-reduced (Megatron-LM, arXiv 1909.08053, section
    3), and so are each token's largest logit, its label's logit and its sum of exponentials. In a pipeline the last
    stage has the head but no embedding.

    This project all-reduces the embedding's output in the type of the `residual` stream, and each rank takes its part;
    the gradient is gathered. The head's input is gathered and its gradient scattered. Each chunk of the loss
    all-reduces the largest logits, then both sums.
    """
    ring = Ring.along(c, *CUTTING["width"])
    reduced = np.where(c.is_piped, 1.0, 2.0) * ring.all_reduce_s(boundary) + 3 * ring.all_reduce_s(4 * c.tokens)
    if not np.any(c.own_mesh):
        return reduced
    embedding = np.where(c.is_piped, 0.0, ring.all_reduce_s(residual) + ring.gather_s(residual))
    chunks = np.where(c.chunked_loss > 0, np.ceil(c.tokens * c.vocab / c.tp / CHUNK_LOGITS), 1.0)
    loss = chunks * (ring.all_reduce_s(4 * c.tokens / chunks) + ring.all_reduce_s(8 * c.tokens / chunks))
    return np.where(c.own_mesh > 0, embedding + 2 * ring.gather_s(boundary) + loss, reduced)


def context_s(c: Columns, tokens: Array, full: Mask) -> Array:
    """Returns the seconds of one block and micro-batch for the `degrees` that do not split layers."""
    return sum((seconds for _, seconds in degrees.blocks_s(c, tokens, full)), np.zeros(()))


def exchanges_s(c: Columns, boundary: Array, residual: Array, *, both_ways: bool) -> tuple[Array, Array]:
    """Returns two times in seconds per virtual stage: all exchanges of one micro-batch at the stage with the slowest
    ones, and the exchanges of one stage's output and its gradient, averaged over the boundaries.

    A stage waits for its exchanges. With `both_ways` an exchange sends to a neighbour and receives from it at the same
    time, as in torch's and Megatron-LM's 1F1B (`Schedule1F1B`, `send_forward_recv_backward`); otherwise sending and
    receiving follow each other. Megatron-LM and DeepSpeed send each value once and gather it within the tensor-parallel
    group (arXiv 2104.04473, section 4.1; `pipe/engine.py`, `pipe_partitioned`), which is unnecessary with sequence
    parallelism. This project's ranks send their tokens of the `residual` stream.
    """
    boundaries = Boundaries.of(c)
    sent = np.where(c.own_mesh > 0, residual, boundary) / c.tp
    gathered = np.where(c.sequence_parallel > 0, 0.0, Ring.along(c, *CUTTING["width"]).gather_s(boundary))
    inside = c.intra_latency + sent / c.intra_bandwidth
    between = np.where(boundaries.spans, c.inter_latency + sent / boundaries.bandwidth, inside)
    slowest, mean = np.maximum(inside, between), inside + boundaries.share * (between - inside)
    if not both_ways:
        return 2 * (slowest + gathered), 2 * (mean + gathered)
    has_two = (c.pp > 2) | (c.axes["virtual"] > 1)
    other = np.where(has_two, np.where(boundaries.adjacent, slowest, np.minimum(inside, slowest)), 0.0)
    return slowest + other + np.where(has_two, 2.0, 1.0) * gathered, 2 * (mean + gathered)


def tied_ends_s(c: Columns, sharing: Array) -> Array:
    """Returns the seconds to add the first and the last stage's gradients of a tied table, of which each of `sharing`
    ranks has a part. Within a node the time is neglected, because the links are fast.
    """
    stage = inside(c, *CUTTING["depth"])
    ends = Ring.of(c, np.full((), 2.0), stride=stage * np.maximum(c.pp - 1, 1.0))
    reduced = ends.all_reduce_s(c.rank_table / sharing * c.gradient_bytes)
    return np.where((c.tied > 0) & c.is_piped & (devices_of(c) > c.devices_per_node), reduced, 0.0)
