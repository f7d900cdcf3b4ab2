"""Costs of a dense block: four products, attention and an activation. Base class for the other kinds of blocks."""

import dataclasses
import functools
import operator

import numpy as np

from platform.cost_model import constants, mesh
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.compute import attention_s, backward_matmul_s, casts_softmax, matmul_s
from platform.cost_model.engines import costs_of
from platform.cost_model.hardware import BANDWIDTH_SHARE

FUSED_REPLICATED = constants.number("compute", "FUSED_REPLICATED")
FUSED_SHUFFLE = constants.number("compute", "FUSED_SHUFFLE")
ROTARY_PASSES = constants.words("compute", "ROTARY_PASSES")
EAGER_FACTOR = constants.number("compute", "EAGER_FACTOR")
KERNEL_S = constants.number("compute", "KERNEL_S")
KERNELS = constants.words("compute", "KERNELS")
REPEATED_PASSES = constants.number("compute", "REPEATED_PASSES")
BACKWARD_FACTOR = constants.number("compute", "BACKWARD_FACTOR")
AUTOCAST_FACTOR = constants.words("compute", "AUTOCAST_FACTOR")
WIDE_GELU = constants.pair("compute", "WIDE_GELU")
EAGER_SCORE_BYTES = constants.number("memory", "EAGER_SCORE_BYTES")


class DenseCosts:
    """Seconds and bytes of one block for one micro-batch on one rank. Attention, products and passes each have a
    forward and a backward time. Sizes specific to one kind of block are in `Columns.blocks`.
    """

    def attention_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        """Returns the seconds (forward, backward) between the query-key-value product and the output product."""
        return attention_s(c, tokens)

    def products_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        """Returns the seconds (forward, backward) of the four products: into and out of attention, up and down."""
        h, heads, inner = c.hidden, c.attention_width, c.blocks["ffn"] / c.tp
        into = (((heads + 2 * c.kv_width) / c.tp, h), (inner * (1 + c.blocks["gated"]), h))
        out = ((h, heads / c.tp), (h, inner))
        # Each rank casts its own values of the hidden width before they are gathered.
        wide = (
            dataclasses.replace(c, cast_bytes=c.cast_bytes / mesh.cast_ranks(c))
            if np.any(c.software.keeps_casts)
            else c
        )
        forward = [*(matmul_s(wide, tokens, *shape) for shape in into), *(matmul_s(c, tokens, *shape) for shape in out)]
        backward = [
            *(backward_matmul_s(c, tokens, *shape, weights=wide) for shape in into),
            *(backward_matmul_s(wide, tokens, *shape, weights=c) for shape in out),
        ]
        return functools.reduce(operator.add, forward), functools.reduce(operator.add, backward)

    def last_product_s(self, c: Columns, tokens: Array) -> Array:
        """Returns the forward seconds of the last product, which recomputation may skip."""
        return matmul_s(c, tokens, c.hidden, c.blocks["ffn"] / c.tp)

    def passes_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        """Returns the seconds (forward, backward) of element-wise passes, and of starting and ending their kernels. The
        backward pass has twice as many kernels.
        """
        h, tp = c.hidden, c.tp
        qkv, inner = (c.attention_width + 2 * c.kv_width) / tp, c.blocks["ffn"] / tp
        replicated = FUSED_REPLICATED * h / np.where(c.sequence_parallel > 0, tp, 1.0)
        is_fused, is_compiled = c.fused > 0, c.compiled_calls > 0
        rotated = c.rotary * (c.attention_width + c.kv_width) / tp
        # Compiled code lays queries and keys out as it rotates them; attention reads values in place.
        shuffle = np.where(is_compiled & (c.rotary > 0), 0.0, FUSED_SHUFFLE * qkv)
        wide = np.where(
            costs_of(c).autocasts(c), np.where(is_fused, AUTOCAST_FACTOR["fused"], AUTOCAST_FACTOR["eager"]), 1.0
        )
        values = (replicated * wide + shuffle) * np.where(is_fused, 1.0, EAGER_FACTOR)
        values = values + c.software.unfused_norm_passes * h / np.where(c.sequence_parallel > 0, tp, 1.0)
        by_parts = ROTARY_PASSES["parts"] * np.where(is_fused, 1.0, EAGER_FACTOR)
        rotation, rotation_backward = (
            rotated * np.where(is_compiled, ROTARY_PASSES[way], by_parts * factor)
            for way, factor in (("compiled", 1.0), ("compiled_backward", BACKWARD_FACTOR))
        )
        per_value = tokens * c.compute_bytes / (c.bandwidth * BANDWIDTH_SHARE)
        gelu, gelu_backward = (np.where(widens_gelu(c), factor, 1.0) for factor in WIDE_GELU)
        # Kernels fused by hand take theirs within the rates that their software's runs show. A product that computes
        # GELU saves one tensor of inner width.
        eager = KERNELS["eager"] - KERNELS["gelu"] * (c.inner_copies < 2)
        compiled = KERNELS["compiled"] + KERNELS["casts"] * (c.cast_bytes > 0)
        kernels = np.where(is_fused, compiled * (c.compiled_calls > 0), eager)
        ends = KERNEL_S * kernels * wide
        return (
            (values + rotation + inner * c.activation_forward * gelu) * per_value + ends,
            (BACKWARD_FACTOR * values + rotation_backward + inner * c.activation_backward * gelu_backward) * per_value
            + 2 * ends,
        )

    def passes_again_s(self, c: Columns, passes: Array) -> Array:
        """Returns the seconds of element-wise passes where all but products and attention are recomputed, given those
        of the forward pass.
        """
        return passes * np.where(c.compiled_calls > 0, REPEATED_PASSES, 1.0)

    def further_launches(self, c: Columns) -> Array:
        """Returns the forward kernels in addition to those of every block; a backward pass has twice as many."""
        return np.zeros(())

    def tensor_s(self, c: Columns, boundary: Array, full: Mask) -> Array:
        if not np.any(c.software.gathers_again):
            return mesh.tensor_s(c, boundary, full)
        inner = c.blocks["ffn"] / c.tp * (1 + c.blocks["gated"])
        widths = ((c.attention_width + 2 * c.kv_width) / c.tp, inner)
        return mesh.tensor_s(c, boundary, full, [matmul_s(c, c.tokens, width, c.hidden) for width in widths])

    def context_s(self, c: Columns, tokens: Array, full: Mask) -> Array:
        return mesh.context_s(c, tokens, full)

    def saved_bytes(self, c: Columns, held: Array) -> tuple[Array, Array]:
        """Returns the bytes (saved for the backward pass, transient in it); `held` is the share of gathered inputs that
        stay unsharded.

        A block saves norm inputs and outputs (4 h), queries, keys, values, attention's output, and the inner values
        before and after the activation. Eager attention also saves probabilities and, with a wider softmax, the values
        from which the softmax is recomputed. Dropout saves one byte per value.
        """
        tokens = c.micro_batch * c.seq_len / c.cp
        split = np.where(c.sequence_parallel > 0, c.tp, 1.0)
        residual = residual_value_bytes(c)
        # GELU saves in fp32 the power's input, the tangent and one plus the tangent; in two bytes half the input and
        # the output.
        inner = np.where(widens_gelu(c), 8.0, c.inner_copies) * c.blocks["ffn"]
        a_value = 2 * residual + 2 * c.software.dropout + c.software.unfused_norm_bytes
        # If products keep their casts, attention's output is held in addition to its cast.
        is_cast = (c.software.keeps_casts > 0) & (c.cast_bytes > 0)
        narrower = np.where(is_cast, c.compute_bytes - 1, 0.0)
        gathered = 2 * (c.compute_bytes - narrower) * (held + (1 - held) / split)
        replicated = (a_value / split + gathered) * c.hidden
        copied = c.attention_width * ((c.software.copies_attention > 0) & (c.micro_batch > 1))
        sharded = c.compute_bytes * (2 * c.attention_width + 2 * c.kv_width + copied + inner) / c.tp
        sharded = sharded + (np.where(is_cast, c.attention_width, 0.0) - narrower * c.blocks["ffn"]) / c.tp
        per_score = c.compute_bytes + c.software.dropout * (1 + c.compute_bytes)
        per_score = per_score + np.where(
            casts_softmax(c), np.where(c.fused > 0, (c.compiled_calls > 0) * c.compute_bytes, EAGER_SCORE_BYTES), 0.0
        )
        per_score = per_score + EAGER_SCORE_BYTES * c.software.eager_softmax
        scores = np.where(c.flash > 0, 0.0, per_score * c.heads * c.seq_len / c.tp)
        # Selective checkpointing does not save the attention core, of which the scores are the largest part.
        saved_scores = np.where(c.selective_checkpointing > 0, 0.0, scores)
        transient = tokens * c.compute_bytes * (2 * c.blocks["ffn"] / c.tp + 2 * c.hidden)
        # fp32 scores before the softmax, and their gradient
        wide_scores = 2 * EAGER_SCORE_BYTES * c.software.eager_softmax * c.heads * c.seq_len / c.tp
        transient = transient + np.where(c.flash > 0, 0.0, tokens * wide_scores)
        transient = transient + np.where(c.selective_checkpointing > 0, tokens * scores, 0.0)
        # This project's selective checkpointing saves a block's input and the outputs of its products and fused
        # attention. A compiled block does not save the last product: nothing in the backward pass reads it, unless a
        # norm follows.
        products = (
            (2 - (c.fused > 0)) * c.hidden
            + 2 * c.attention_width
            + 2 * c.kv_width
            + (1 + c.blocks["gated"]) * c.blocks["ffn"]
        )
        saved = np.where(
            ((c.selective_checkpointing > 0) | _casts_again(c)) & (c.software.repeats_core_alone == 0),
            residual * c.hidden / split + c.compute_bytes * products * c.software.checkpoint_device_share / c.tp,
            replicated + sharded + saved_scores,
        )
        return tokens * saved, transient

    def kept_bytes(self, c: Columns, everything: Array, block_input: Array) -> tuple[Array, Array]:
        """Returns the bytes of a block that stay until its backward pass (with an activation budget, or `everything`
        without one; with full checkpointing). `block_input` are the bytes of the block's input.
        """
        return np.maximum(c.budget * everything, block_input), block_input

    def budget_again_s(self, c: Columns, tokens: Array, forward: Array) -> Array:
        """Returns the seconds of recomputation with an activation budget, given those of the forward pass."""
        # The compiler recomputes the cheapest values first: an estimate, not measured yet.
        return (1 - c.budget) ** 2 * forward


def residual_value_bytes(c: Columns) -> Array:
    """Returns the bytes per value of the residual stream, which autocast keeps in fp32."""
    return np.where(costs_of(c).autocasts(c), c.state_bytes, c.compute_bytes)


def widens_gelu(c: Columns) -> Mask:
    """Returns the rows with an eager GELU in fp32: autocast computes powers in fp32, and operations on the result stay
    in fp32 (torch.amp, "CUDA Ops that can autocast to float32").
    """
    return costs_of(c).autocasts(c) & (c.power_activation > 0) & (c.fused == 0) & (c.blocks["gated"] == 0)


def _casts_again(c: Columns) -> Mask:
    """Returns the rows whose compiled blocks save only the outputs of their FP8 products, as with selective
    checkpointing. The backward products read casts, which the compiler recomputes instead of saving (torch 2.13,
    `ban_recompute_materialized_backward` in `functorch/config.py`; one H200, this project).
    """
    return (c.cast_bytes > 0) & (c.fused > 0) & (c.full_checkpointing == 0)
