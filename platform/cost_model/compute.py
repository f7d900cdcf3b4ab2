"""Seconds of computing: matrix products, attention, element-wise passes, the loss, the optimizer.

Every time follows the roofline model (Williams, Waterman, Patterson, CACM 2009): the longer of arithmetic at the
sustained rate and memory traffic at the sustained bandwidth. Products are counted as in arXiv 2104.04473, section 3.5
and appendix.
"""

import dataclasses
import functools
import operator

import numpy as np

from platform.cost_model import constants, offload
from platform.cost_model.columns import CHUNK_LOGITS, Array, Columns, Mask, checkpointed_share
from platform.cost_model.engines import costs_of
from platform.cost_model.hardware import BANDWIDTH_SHARE

ADAFACTOR_PASSES = constants.number("compute", "ADAFACTOR_PASSES")
TILE_COLUMNS = constants.number("compute", "TILE_COLUMNS")
SMALLER_TILES = tuple((float(parts), share) for parts, share in constants.words("compute", "SMALLER_TILES").items())
FUSED_REPLICATED = constants.number("compute", "FUSED_REPLICATED")
FUSED_SHUFFLE = constants.number("compute", "FUSED_SHUFFLE")
ROTARY_PASSES = constants.number("compute", "ROTARY_PASSES")
EAGER_FACTOR = constants.number("compute", "EAGER_FACTOR")
REPEATED_PASSES = constants.number("compute", "REPEATED_PASSES")
KERNEL_S = constants.number("compute", "KERNEL_S")
KERNELS = constants.words("compute", "KERNELS")
BACKWARD_FACTOR = constants.number("compute", "BACKWARD_FACTOR")
SOFTMAX_PASSES = constants.number("compute", "SOFTMAX_PASSES")
DROPOUT_PASSES = constants.number("compute", "DROPOUT_PASSES")
UNIT_VALUES = constants.number("compute", "UNIT_VALUES")
WARP_SOFTMAX = constants.number("compute", "WARP_SOFTMAX")
HEAD_COPIES = constants.number("compute", "HEAD_COPIES")
AUTOCAST_FACTOR = constants.words("compute", "AUTOCAST_FACTOR")
WIDE_GELU = constants.pair("compute", "WIDE_GELU")
ODD_SHARE = constants.number("compute", "ODD_SHARE")
ODD_FLOPS = constants.number("compute", "ODD_FLOPS")
EVEN_SHARE = constants.number("compute", "EVEN_SHARE")
EVEN_FLOPS = constants.number("compute", "EVEN_FLOPS")
METRIC_BYTES = constants.number("compute", "METRIC_BYTES")


def matmul_s(columns: Columns, rows: Array, width: Array, depth: Array) -> Array:
    """Returns the seconds of a forward product [rows, depth] x [depth, width].

    Two effects lower the sustained rate: the last wave of tiles leaves units idle, and a tile's start and end are a
    larger share of a short depth (NVIDIA, "Matrix Multiplication Background User's Guide", sections 4.2 and 4.3). Where
    there are fewer tiles than units, the depth is split among the units, and their partial sums are written in fp32 and
    added up (split-K: CUTLASS, `efficient_gemm.md`, "Parallelized Reductions"; in the limit, arXiv 2301.03598). Weight
    gradients of narrow models are such products: their depth is the number of tokens. fp8 products cast their operands
    from 16 bits.
    """
    c = columns
    waves = np.ceil(rows / c.tile_rows) * np.ceil(width / TILE_COLUMNS) / c.units
    bandwidth = c.bandwidth * BANDWIDTH_SHARE
    ideal = 2 * rows * width * depth / c.matmul_flops
    # The library chooses smaller tiles, which reuse less data, where they fill the last wave better.
    idle = np.ceil(waves) / waves
    for parts, share in SMALLER_TILES:
        idle = np.minimum(idle, np.ceil(waves * parts) / (waves * parts) / share)
    filled_s = ideal * idle * (1 + c.half_depth / depth)
    cut = ideal * (1 + c.half_depth / (depth * waves)) + 8 * rows * width / waves / bandwidth
    traffic = (rows * depth + depth * width + rows * width) * c.compute_bytes
    casts = rows * depth * c.cast_bytes / bandwidth
    return np.maximum(np.where(waves < 1, np.minimum(filled_s, cut), filled_s), traffic / bandwidth) + casts


def _misalignment(c: Columns, width: Array) -> Array:
    """Returns the time of 16-bit products over `width`, relative to the time over a multiple of 8.

    Inductor pads products that it compiles (torch._inductor.config.shape_padding): the head's where the whole model is
    compiled, as the loss shows. A chunked loss pads the table itself.
    """
    odd = np.maximum(1 / ODD_SHARE, c.matmul_flops / ODD_FLOPS)
    even = np.maximum(1 / EVEN_SHARE, c.matmul_flops / EVEN_FLOPS)
    slower = np.where(width % 2 != 0, odd, np.where(width % 8 != 0, even, 1.0))
    return np.where((c.compute_bytes == 2) & (c.pads_vocabulary == 0), slower, 1.0)


def _backward_matmul_s(columns: Columns, rows: Array, width: Array, depth: Array) -> Array:
    """Returns the seconds of both products of the backward pass: the input's gradient and the weight's."""
    return matmul_s(columns, rows, depth, width) + matmul_s(columns, depth, width, rows)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayerSeconds:
    """Seconds of one block for one micro-batch on one rank."""

    forward: Array
    backward: Array
    again: Array
    """Seconds of the parts that checkpointing recomputes in the backward pass."""
    attention: Array
    """Seconds between the query-key-value product and the output product; they are part of the three fields above."""


def _attention_seconds(columns: Columns, tokens: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) between the query-key-value product and the output product.

    Fused attention computes 2 products of the lower triangle only; its backward pass computes 2.5 times as much (arXiv
    2307.08691, section 4.1). Eager attention computes two full batched products, whose operands pass through memory,
    and makes passes over the scores [heads, s, s].
    """
    seq, heads = columns.seq_len, columns.heads / columns.tp
    head_dim = columns.attention_width / columns.heads
    width = columns.attention_width / columns.tp
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
    # The second product's depth is the sequence length.
    deep_rate = sustained * seq / (seq + columns.half_depth)
    second = np.maximum(2 * scores * head_dim / deep_rate, score_bytes / bandwidth)
    one_kernel = columns.fused_softmax > 0
    dropout = columns.dropout * DROPOUT_PASSES * score_bytes / bandwidth
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
    """Returns (bytes moved, values moved one by one) per score besides the products, forward and backward, for
    transformers' eager attention.

    Forward: the position bias is copied into place and read by the product that adds to it, or the scale is a pass. The
    mask is added; under autocast it is fp32, and so is the sum. An fp32 softmax is followed by a cast, and preceded by
    one unless the mask has made its input fp32. Backward: the softmax's kernel reads gradient and output; then come
    both casts and the scale's pass (`modeling_bloom.py`, `modeling_gpt2.py`, `modeling_llama.py`; ATen's `SoftMax.cu`).
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


def layer_seconds(columns: Columns) -> LayerSeconds:
    """Returns the seconds of one block: products by roofline, attention, element-wise passes. The caller adds the
    launch floor.
    """
    tokens = columns.micro_batch * columns.seq_len / columns.cp
    attention, attention_backward = _attention_seconds(columns, tokens)
    products, products_backward = _product_seconds(columns, tokens)
    passes, passes_backward = _pass_seconds(columns, tokens)
    again, attention_again = _again_seconds(columns, tokens, attention, products, passes)
    weights = _weight_traffic_s(columns, columns.layer_parameters / columns.tp)
    return LayerSeconds(
        forward=products + attention + passes,
        backward=products_backward + attention_backward + passes_backward + weights,
        again=again,
        attention=attention + attention_backward + attention_again,
    )


def _product_seconds(c: Columns, tokens: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) of a block's four products: into attention and out of it, up and down."""
    h, heads, inner = c.hidden, c.attention_width, c.ffn / c.tp
    shapes = (((heads + 2 * c.kv_width) / c.tp, h), (h, heads / c.tp), (inner * (1 + c.gated), h), (h, inner))
    forward = (matmul_s(c, tokens, *shape) for shape in shapes)
    backward = (_backward_matmul_s(c, tokens, *shape) for shape in shapes)
    return functools.reduce(operator.add, forward), functools.reduce(operator.add, backward)


def _pass_seconds(c: Columns, tokens: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) of a block's element-wise passes, and of starting and ending its kernels,
    of which the backward pass has twice as many.
    """
    h, tp = c.hidden, c.tp
    qkv, inner = (c.attention_width + 2 * c.kv_width) / tp, c.ffn / tp
    replicated = FUSED_REPLICATED * h / np.where(c.sequence_parallel > 0, tp, 1.0)
    rotation = ROTARY_PASSES * c.rotary * (c.attention_width + c.kv_width) / tp
    is_fused = c.fused > 0
    wide = np.where(
        costs_of(c).autocasts(c), np.where(is_fused, AUTOCAST_FACTOR["fused"], AUTOCAST_FACTOR["eager"]), 1.0
    )
    values = (replicated * wide + FUSED_SHUFFLE * qkv + rotation) * np.where(is_fused, 1.0, EAGER_FACTOR)
    values = values + c.unfused_norm_passes * h / np.where(c.sequence_parallel > 0, tp, 1.0)
    per_value = tokens * c.compute_bytes / (c.bandwidth * BANDWIDTH_SHARE)
    gelu, gelu_backward = (np.where(widens_gelu(c), factor, 1.0) for factor in WIDE_GELU)
    # Kernels fused by hand take theirs within the rates that their software's runs show. A product that computes GELU
    # saves one tensor of inner width.
    eager = KERNELS["eager"] - KERNELS["gelu"] * (c.inner_copies < 2)
    kernels = np.where(is_fused, KERNELS["compiled"] * (c.compiled_calls > 0), eager)
    ends = KERNEL_S * kernels * wide
    return (
        (values + inner * c.activation_forward * gelu) * per_value + ends,
        (BACKWARD_FACTOR * values + inner * c.activation_backward * gelu_backward) * per_value + 2 * ends,
    )


def _again_seconds(c: Columns, tokens: Array, attention: Array, products: Array, passes: Array) -> tuple[Array, Array]:
    """Returns the seconds that a block's backward pass spends on recomputation, in total and for attention alone, given
    the seconds of its forward pass.
    """
    forward = products + attention + passes
    last_product = np.where(costs_of(c).stops_early(c), matmul_s(c, tokens, c.hidden, c.ffn / c.tp), 0.0)
    recomputed_s = (forward - last_product) * checkpointed_share(c)
    # Selective: Megatron-LM recomputes the attention core (arXiv 2205.05198, section 5), as fused attention does
    # anyway. This project's engines keep the outputs of products and fused attention, and recompute the rest
    # (`engines/_kernels.py`).
    core = np.where(c.flash > 0, 0.0, attention)
    again = passes * np.where(c.compiled_calls > 0, REPEATED_PASSES, 1.0)
    repeated = np.where(c.repeats_core_alone == 0, again + (1 - c.checkpoint_device_share) * products, 0.0)
    # Under a budget the compiler recomputes the cheapest values first: an estimate, not measured yet.
    cheapest = (1 - c.budget) ** 2 * forward
    is_full, is_selective = c.full_checkpointing > 0, c.selective_checkpointing > 0
    return (
        np.where(is_full, recomputed_s, np.where(is_selective, core + repeated, cheapest)),
        np.where(is_full, attention * checkpointed_share(c), np.where(is_selective, core, 0.0)),
    )


def _weight_traffic_s(c: Columns, parameters: Array) -> Array:
    """Returns the seconds per micro-batch of memory traffic, besides products, for `parameters` of one rank and their
    gradients.
    """
    repeated = np.where(c.full_checkpointing > 0, checkpointed_share(c), 0.0)
    moved_s = costs_of(c).weight_traffic(c, repeated) / (c.bandwidth * BANDWIDTH_SHARE)
    return parameters * (moved_s + costs_of(c).converted_values(c) / (c.units * UNIT_VALUES))


def casts_softmax(c: Columns) -> Mask:
    """Returns the rows whose eager attention casts scores to fp32 for the softmax and back; under autocast every row
    does.
    """
    return (c.compute_bytes < 4) & ((c.wide_softmax > 0) | costs_of(c).autocasts(c))


def widens_gelu(c: Columns) -> Mask:
    """Returns the rows whose eager GELU is computed in fp32: autocast computes powers in fp32, and operations on their
    result are fp32 too (torch.amp, "CUDA Ops that can autocast to float32").
    """
    return costs_of(c).autocasts(c) & (c.power_activation > 0) & (c.fused == 0) & (c.gated == 0)


def head_s(columns: Columns) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) of the vocabulary product and the loss for one micro-batch.

    Every byte that the loss holds per logit is written once and read once. A chunked loss adds each chunk's gradient of
    the table to an fp32 sum, and scales the sum at the end.
    """
    tokens = columns.micro_batch * columns.seq_len / columns.cp
    width = columns.vocab / columns.tp
    slower = _misalignment(columns, width)
    halves = dataclasses.replace(
        columns, matmul_flops=columns.matmul_flops / columns.head_slowdown, cast_bytes=np.zeros(())
    )
    forward = matmul_s(halves, tokens, width, columns.hidden) * slower
    backward = _backward_matmul_s(halves, tokens, width, columns.hidden) * slower
    chunks = np.ceil(tokens * width / CHUNK_LOGITS)
    sums = np.where(columns.chunked_loss > 0, 12.0 * chunks * width * columns.hidden, 0.0)
    bandwidth = columns.bandwidth * BANDWIDTH_SHARE
    moved = np.where(columns.loss_moved > 0, columns.loss_moved / 2, columns.logit_bytes)
    traffic = tokens * width * (moved + METRIC_BYTES / 2 * columns.metric_losses) / bandwidth
    table = columns.table_parameters / columns.tp
    # A lookup's gradient is a full table of zeros with some rows added; a tied table adds the head's gradient to it. In
    # a pipeline another stage does this.
    lookup = np.where(columns.pp > 1, 0.0, table * columns.compute_bytes * (1 + 3 * columns.tied) / bandwidth)
    weights = _weight_traffic_s(columns, table)
    return forward + traffic, backward + traffic + lookup + weights + sums / bandwidth


def optimizer_s(columns: Columns, parameters: Array) -> Array:
    """Returns the seconds of the optimizer step over `parameters` of one rank: memory traffic, or the host's seconds
    where the states are offloaded.

    Adam reads gradient, master and two moments and writes master and moments (28 bytes in fp32), then writes the
    low-precision copy; the norm reads gradients once more (states: ZeRO, arXiv 1910.02054, section 3.1). Adafactor has
    no moments, and passes over tensors of a gradient's size `ADAFACTOR_PASSES` times.
    """
    passes = np.where(columns.moments > 0, 3 + 2 * columns.moments, ADAFACTOR_PASSES)
    held = columns.state_bytes * passes
    traffic = parameters * (held + columns.state_bytes + columns.compute_bytes)
    on_device = traffic / (columns.bandwidth * BANDWIDTH_SHARE)
    return np.where(columns.states_on_host > 0, offload.optimizer_s(columns, parameters), on_device)
