"""Seconds of compute: matrix products, attention, the loss, the optimizer.

Every time follows the roofline model (Williams, Waterman, Patterson, CACM 2009): the longer of arithmetic at the
sustained rate and memory traffic at the sustained bandwidth. Products are counted as in arXiv 2104.04473, section 3.5
and appendix.
"""

import dataclasses

import numpy as np

from platform.cost_model import constants, offload
from platform.cost_model.columns import CHUNK_LOGITS, Array, Columns, Mask, checkpointed_share
from platform.cost_model.engines import costs_of
from platform.cost_model.hardware import BANDWIDTH_SHARE

ADAFACTOR_PASSES = constants.number("compute", "ADAFACTOR_PASSES")
ADAM_VALUES = constants.number("compute", "ADAM_VALUES")
TILE_COLUMNS = constants.number("compute", "TILE_COLUMNS")
SMALLER_TILES = tuple((float(parts), share) for parts, share in constants.words("compute", "SMALLER_TILES").items())
SOFTMAX_PASSES = constants.number("compute", "SOFTMAX_PASSES")
DROPOUT_PASSES = constants.number("compute", "DROPOUT_PASSES")
UNIT_VALUES = constants.number("compute", "UNIT_VALUES")
WARP_SOFTMAX = constants.number("compute", "WARP_SOFTMAX")
HEAD_COPIES = constants.number("compute", "HEAD_COPIES")
ODD_SHARE = constants.number("compute", "ODD_SHARE")
ODD_FLOPS = constants.number("compute", "ODD_FLOPS")
EVEN_SHARE = constants.number("compute", "EVEN_SHARE")
EVEN_FLOPS = constants.number("compute", "EVEN_FLOPS")
METRIC_BYTES = constants.number("compute", "METRIC_BYTES")


def matmul_s(columns: Columns, rows: Array, width: Array, depth: Array, groups: Array | float = 1.0) -> Array:
    """Returns the seconds of a forward product [rows, depth] x [depth, width].

    With `groups` the rows are divided into equal parts, each with its own right operand: all right operands are read
    from memory, and the last rows of each part need their own tile.

    Two effects lower the sustained rate: the last wave of tiles leaves units idle, and with a short depth the start and
    end of a tile take a larger share (NVIDIA, "Matrix Multiplication Background User's Guide", sections 4.2 and 4.3).
    With fewer tiles than units, the depth is split among the units, whose fp32 partial sums are written and added
    (split-K: CUTLASS, `efficient_gemm.md`, "Parallelized Reductions"; in the limit, arXiv 2301.03598). This applies to
    weight gradients of narrow models, whose depth is the number of tokens. fp8 products cast their operands from 16
    bits.
    """
    c = columns
    in_group = rows / groups
    waves = groups * np.ceil(in_group / c.tile_rows) * np.ceil(width / TILE_COLUMNS) / c.units
    bandwidth = c.bandwidth * BANDWIDTH_SHARE
    ideal = 2 * rows * width * depth / c.matmul_flops
    # The library chooses smaller tiles, which reuse less data, if they fill the last wave better.
    idle = np.ceil(waves) / waves * _filled(c, in_group, groups, 1.0)
    for parts, share in SMALLER_TILES:
        filled = _filled(c, in_group, groups, parts)
        idle = np.minimum(idle, np.ceil(waves * parts) / (waves * parts) / share * filled)
    filled_s = ideal * idle * (1 + c.half_depth / depth)
    cut = ideal * (1 + c.half_depth / (depth * waves)) + 8 * rows * width / waves / bandwidth
    traffic = (rows * depth + groups * depth * width + rows * width) * c.compute_bytes
    casts = rows * depth * c.cast_bytes / bandwidth
    return np.maximum(np.where(waves < 1, np.minimum(filled_s, cut), filled_s), traffic / bandwidth) + casts


def _filled(c: Columns, in_group: Array, groups: Array | float, parts: float) -> Array | float:
    """Returns the rows that the tiles of a group compute, divided by the group's own rows, for tiles of
    `c.tile_rows / parts` rows; 1 without groups, because the last tile is then one of many.
    """
    if np.all(np.asarray(groups) == 1):
        return 1.0
    tile = c.tile_rows / parts
    return np.ceil(in_group / tile) * tile / in_group


def _misalignment(c: Columns, width: Array) -> Array:
    """Returns the time of 16-bit products over `width` relative to a multiple of 8.

    Inductor pads products that it compiles (torch._inductor.config.shape_padding): the head's if the whole model is
    compiled, as the kind of loss shows. A chunked loss pads the table itself.
    """
    odd = np.maximum(1 / ODD_SHARE, c.matmul_flops / ODD_FLOPS)
    even = np.maximum(1 / EVEN_SHARE, c.matmul_flops / EVEN_FLOPS)
    slower = np.where(width % 2 != 0, odd, np.where(width % 8 != 0, even, 1.0))
    return np.where((c.compute_bytes == 2) & (c.pads_vocabulary == 0), slower, 1.0)


def backward_matmul_s(
    columns: Columns, rows: Array, width: Array, depth: Array, *, weights: Columns | None = None
) -> Array:
    """Returns the seconds of the backward products: the gradient of the input and, unless frozen, of the weight.
    `weights` are the columns for the weight's gradient if they differ.
    """
    of_weights = matmul_s(weights or columns, depth, width, rows)
    return matmul_s(columns, rows, depth, width) + unless_frozen(columns, of_weights)


def unless_frozen(columns: Columns, amount: Array) -> Array:
    """Returns `amount`, or 0 in rows with frozen model parameters."""
    return np.where(columns.adapter_rank > 0, 0.0, amount) if columns.has_adapters else amount


def attention_s(columns: Columns, tokens: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) between the query-key-value product and the output product.

    Fused attention computes 2 products of the lower triangle only; its backward pass computes 2.5 times as much (arXiv
    2307.08691, section 4.1). Eager attention computes two full batched products, whose operands are read from memory,
    and passes over the scores [heads, s, s].
    """
    seq, heads = columns.seq_len, columns.heads / columns.parts("width")
    head_dim = columns.attention_width / columns.heads
    width = columns.attention_width / columns.parts("width")
    triangle = 2 * tokens * seq * width
    flash_rate = columns.flash_flops * seq / (seq + columns.flash_half_length)
    flash = triangle / (flash_rate * np.where(columns.flash > 0, columns.flash, 1.0))

    bandwidth = columns.bandwidth * BANDWIDTH_SHARE
    scores = tokens * heads * seq
    score_bytes = scores * columns.compute_bytes
    # Tensor cores need depths that are multiples of 8; other products run on the fp32 units (NVIDIA, same source, 3.1).
    sustained = np.where(head_dim % 8 == 0, columns.matmul_flops, columns.plain_flops)
    rate = sustained * head_dim / (head_dim + columns.half_depth)
    product = np.maximum(
        2 * scores * head_dim / rate, (score_bytes + 3 * tokens * width * columns.compute_bytes) / bandwidth
    )
    # the second product's depth is the sequence length
    deep_rate = sustained * seq / (seq + columns.half_depth)
    second = np.maximum(2 * scores * head_dim / deep_rate, score_bytes / bandwidth)
    one_kernel = columns.fused_softmax > 0
    dropout = columns.software.dropout * DROPOUT_PASSES * score_bytes / bandwidth
    kernel = SOFTMAX_PASSES * score_bytes / bandwidth
    unfused, unfused_backward = (
        scores * (moved / bandwidth + count / (columns.units * UNIT_VALUES)) for moved, count in _eager_traffic(columns)
    )
    by_transformers = (columns.fused == 0) | (columns.compiled_calls > 0)
    copies = np.where(by_transformers, HEAD_COPIES * tokens * width * columns.compute_bytes / bandwidth, 0.0) + dropout
    eager = product + second + copies + np.where(one_kernel, kernel, unfused)
    eager_backward = (
        2 * (product + second) + copies + np.where(one_kernel, kernel + score_bytes / bandwidth, unfused_backward)
    )
    is_flash = columns.flash > 0
    return np.where(is_flash, flash, eager), np.where(is_flash, 2.5 * flash, eager_backward)


def _eager_traffic(c: Columns) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Returns (bytes moved, values moved one by one) per score in addition to the products, forward and backward, for
    transformers' eager attention.

    Forward: the position bias is copied into place and read by the product that adds it, or the scale is a separate
    pass. The mask is added; under autocast it is fp32, and so is the sum. An fp32 softmax is followed by a cast, and
    preceded by one unless the mask has already made its input fp32. Backward: the softmax kernel reads the gradient and
    the output; both casts and the scale's pass follow (`modeling_bloom.py`, `modeling_gpt2.py`, `modeling_llama.py`;
    ATen's `SoftMax.cu`).
    """
    half, casts, promotes = c.compute_bytes, casts_softmax(c), costs_of(c).autocasts(c)
    wide = np.where(casts, 4.0, half)
    cast = np.where(casts, half + wide, 0.0)
    scales = np.where(c.scales_scores > 0, 2.0, 0.0)
    by_warp = c.seq_len <= WARP_SOFTMAX
    again = casts & ~promotes
    forward = 3 * half + np.where(promotes, wide, half) + 2 * wide + cast + np.where(again, cast, 0.0)
    backward = 3 * wide + 2 * cast + scales * half
    return (
        (forward, 4.0 + 2.0 * by_warp + 2.0 * casts + 2.0 * again),
        (backward, 3.0 * by_warp + 4.0 * casts + scales),
    )


def weight_traffic_s(c: Columns, parameters: Array, *, in_blocks: bool = False) -> Array:
    """Returns the seconds per micro-batch of memory traffic, without products, for a rank's `parameters` and their
    gradients, in its blocks or outside.
    """
    repeated = np.where(c.full_checkpointing > 0, checkpointed_share(c), 0.0)
    bandwidth = c.bandwidth * BANDWIDTH_SHARE
    engine = costs_of(c)
    moved_s = (engine.block_traffic if in_blocks else engine.weight_traffic)(c, repeated) / bandwidth
    trained_s = moved_s + costs_of(c).converted_values(c) / (c.units * UNIT_VALUES)
    if not c.has_adapters:
        return parameters * trained_s
    return parameters * np.where(c.adapter_rank > 0, costs_of(c).frozen_traffic(c) / bandwidth, trained_s)


def weight_casts_s(c: Columns, parameters: Array) -> Array:
    """Returns the seconds per micro-batch of casting weights to FP8 for their products, as the engine does.

    TransformerEngine casts at most once per step, in the first micro-batch (`is_first_microbatch`) or in the
    optimizer's step (`fp8_params` of NeMo's recipes); this is neglected.
    """
    moved = np.where(c.software.keeps_casts > 0, 0.0, costs_of(c).float8_casts(c))
    return parameters * moved / (c.bandwidth * BANDWIDTH_SHARE)


def casts_softmax(c: Columns) -> Mask:
    """Returns the rows whose eager attention casts scores to fp32 for the softmax and back; under autocast all rows."""
    return (c.compute_bytes < 4) & ((c.wide_softmax > 0) | costs_of(c).autocasts(c))


def head_s(columns: Columns) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) of the vocabulary product and the loss for one micro-batch.

    Every byte that the loss holds per logit is written once and read once. A chunked loss adds each chunk's table
    gradient to an fp32 sum, and scales the sum at the end.
    """
    tokens = columns.tokens
    width = columns.vocab / columns.parts("width")
    slower = _misalignment(columns, width)
    halves = dataclasses.replace(
        columns, matmul_flops=columns.matmul_flops / columns.head_slowdown, cast_bytes=np.zeros(())
    )
    forward = matmul_s(halves, tokens, width, columns.hidden) * slower
    backward = backward_matmul_s(halves, tokens, width, columns.hidden) * slower
    chunks = np.ceil(tokens * width / CHUNK_LOGITS)
    sums = np.where(columns.chunked_loss > 0, 12.0 * chunks * width * columns.hidden, 0.0)
    sums = unless_frozen(columns, sums)
    bandwidth = columns.bandwidth * BANDWIDTH_SHARE
    moved = np.where(columns.software.loss_moved > 0, columns.software.loss_moved / 2, columns.logit_bytes)
    traffic = tokens * width * (moved + METRIC_BYTES / 2 * columns.software.metric_losses) / bandwidth
    table = columns.rank_table
    # The gradient of a lookup is a full table of zeros with some rows added; a tied table adds the head's gradient to
    # it. In a pipeline another stage does this.
    lookup = np.where(columns.is_piped, 0.0, table * columns.compute_bytes * (1 + 3 * columns.tied) / bandwidth)
    lookup = unless_frozen(columns, lookup)
    weights = weight_traffic_s(columns, table)
    return forward + traffic, backward + traffic + lookup + weights + sums / bandwidth


def optimizer_s(columns: Columns, parameters: Array) -> Array:
    """Returns the seconds of the optimizer step over `parameters` of one rank: memory traffic, copies of moments in
    host memory, or host seconds for offloaded states.

    Adam reads gradient, master and two moments and writes master and moments (28 bytes in fp32; fewer in 16 bits, where
    arithmetic takes longer), then writes the low-precision copy; the norm reads gradients once more (states: ZeRO,
    arXiv 1910.02054, section 3.1). Adafactor has no moments, and makes `ADAFACTOR_PASSES` passes over tensors of a
    gradient's size.
    """
    passes = np.where(columns.moments > 0, 3 + 2 * columns.moments, ADAFACTOR_PASSES)
    bandwidth = columns.bandwidth * BANDWIDTH_SHARE
    arithmetic = np.where(columns.moments > 0, 1 / (columns.units * ADAM_VALUES), 0.0)
    stepping = np.maximum(columns.state_bytes * passes / bandwidth, arithmetic)
    on_device = parameters * (stepping + (columns.state_bytes + columns.compute_bytes) / bandwidth)
    streamed = offload.streamed_s(columns, parameters, on_device)
    on_device = np.where(columns.moments_on_host > 0, streamed, on_device)
    return np.where(columns.states_on_host > 0, offload.optimizer_s(columns, parameters), on_device)
