"""Seconds of one block: products, attention and element-wise passes, and the parts that checkpointing repeats."""

import dataclasses

import numpy as np

from platform.cost_model import adapters, blocks, constants
from platform.cost_model.columns import Array, Columns, checkpointed_share
from platform.cost_model.compute import weight_casts_s, weight_traffic_s
from platform.cost_model.engines import costs_of

POWER_EXPONENT = constants.number("compute", "POWER_EXPONENT")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayerSeconds:
    """Seconds of one block for one micro-batch on one rank."""

    forward: Array
    backward: Array
    again: Array
    """Seconds of the parts that checkpointing recomputes in the backward pass."""
    attention: Array
    """Seconds between the query-key-value product and the output product, a part of the three fields above."""


def layer_seconds(columns: Columns) -> LayerSeconds:
    """Returns the seconds of one block, mean over a model's blocks: products by roofline, attention, element-wise
    passes. The caller adds the host's lower limit.
    """
    tokens = columns.tokens
    attention, attention_backward = blocks.mean(columns, lambda kind: kind.attention_s(columns, tokens))
    products, products_backward = blocks.mean(columns, lambda kind: kind.products_s(columns, tokens))
    passes, passes_backward = blocks.mean(columns, lambda kind: kind.passes_s(columns, tokens))
    if columns.has_adapters:
        added, added_backward = adapters.added_s(columns, tokens)
        products, products_backward = products + added, products_backward + added_backward
    (passes_again,) = blocks.mean(
        columns, lambda kind: (kind.passes_again_s(columns, kind.passes_s(columns, tokens)[0]),)
    )
    weights = weight_traffic_s(columns, columns.gathered_block, in_blocks=True)
    weights = weights + weight_casts_s(columns, columns.gathered_block)
    slower = _under_power_cap(
        columns, products + products_backward, attention + attention_backward, passes + passes_backward + weights
    )
    products, products_backward = products * slower, products_backward * slower
    attention, attention_backward = attention * slower, attention_backward * slower
    again, attention_again = _again_seconds(columns, tokens, attention, products, passes, passes_again, slower)
    return LayerSeconds(
        forward=products + attention + passes,
        backward=products_backward + attention_backward + passes_backward + weights,
        again=again,
        attention=attention + attention_backward + attention_again,
    )


def _under_power_cap(c: Columns, products: Array, attention: Array, other: Array) -> Array:
    """Returns the time of products and attention relative to that at the clocks of `Columns.matmul_flops`, given a
    block's seconds at these.

    A device at its power cap lowers its clocks until the mean power of a few milliseconds is the cap's. Matrix units
    take most of it, so clocks follow their mean rate over a block: passes over memory between products let these run
    faster.
    """
    if np.all(np.isinf(c.power_share)):
        return np.ones(())
    done = products * c.matmul_flops / (1 + c.half_depth / c.hidden) + attention * c.flash_flops
    mean = done / (products + attention + other) / c.matmul_flops
    return np.maximum(mean / c.power_share, 1.0) ** POWER_EXPONENT


def _again_seconds(
    c: Columns,
    tokens: Array,
    attention: Array,
    products: Array,
    passes: Array,
    passes_again: Array,
    slower: Array,
) -> tuple[Array, Array]:
    """Returns the seconds of a block's backward pass for recomputation, total and for attention alone, given the
    seconds of the forward pass, whose products are `slower` than at the clocks of `Columns.matmul_flops`.
    """
    forward = products + attention + passes
    (last,) = blocks.mean(c, lambda kind: (kind.last_product_s(c, tokens),))
    last_product = np.where(costs_of(c).stops_early(c), last * slower, 0.0)
    recomputed_s = (forward - last_product) * checkpointed_share(c)
    # Selective: Megatron-LM recomputes the attention core (arXiv 2205.05198, section 5), as fused attention does in any
    # case. This project's engines keep the outputs of products and fused attention, and recompute the rest
    # (`engines/_kernels.py`).
    core = np.where(c.flash > 0, 0.0, attention)
    again = passes_again + (1 - c.software.checkpoint_device_share) * products
    repeated = np.where(c.software.repeats_core_alone == 0, again, 0.0)
    (with_budget,) = blocks.mean(c, lambda kind: (kind.budget_again_s(c, tokens, forward),))
    is_full, is_selective = c.full_checkpointing > 0, c.selective_checkpointing > 0
    return (
        np.where(is_full, recomputed_s, np.where(is_selective, core + repeated, with_budget)),
        np.where(is_full, attention * checkpointed_share(c), np.where(is_selective, core, 0.0)),
    )
