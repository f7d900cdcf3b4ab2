"""Costs of torch's autocast, for engines that hold weights in the states' type and cast them for each product."""

import numpy as np

from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share
from platform.cost_model.engines.base import Certain, Sizes
from trainers.spec.layout import Layout


def cast_traffic(c: Columns, autocasts: Mask, repeated: Array) -> Array:
    """Returns the bytes per parameter moved by autocast's casts: each pass casts every weight from the states' type,
    and the backward pass casts each gradient back before it is added.
    """
    casts = (c.state_bytes + c.compute_bytes) * (2 + repeated)
    return np.where(autocasts, casts + gradient_cast(c), 0.0)


def gradient_cast(c: Columns) -> Array:
    """Returns the bytes per parameter moved by the cast of each gradient back to the type of the sums."""
    return np.where(c.grad_accum > 1, c.gradient_bytes - c.compute_bytes, 0.0)


def autocast_cache(c: Columns, autocasts: Mask) -> Array:
    """Returns the bytes of autocast's weight copies. A compiled block casts its own weights and, unless checkpointed,
    saves the copies for its backward pass.
    """
    repeated = np.where(c.full_checkpointing > 0, checkpointed_share(c), c.selective_checkpointing)
    saved_share = np.where(c.fused > 0, 1 - repeated, 1.0)
    return np.where(autocasts, c.compute_bytes * (c.layers * c.rank_block / c.parts("depth")) * saved_share, 0.0)


def head_cast(c: Columns, autocasts: Mask, logits: Array) -> Array:
    """Returns the bytes of autocast's copy of the head's table, read by the backward pass, on ranks with `logits`."""
    return np.where(autocasts & (logits > 0), c.compute_bytes * c.rank_table, 0.0)


def autocast_certain(sizes: Sizes, layout: Layout) -> Certain:
    """Returns the certain memory, at the loss and without gradients, of unsharded weights in the states' type."""
    # F.linear under autocast saves the low-precision weight for its backward pass; a compiler may cast again.
    eager = layout.compile == "none" and layout.checkpointing == "none"
    away = layout.steps_on_host
    return Certain(
        resident=(0.0 if layout.offload == "all" else sizes.state)
        + (sizes.moments if layout.offload == "none" else 0.0),
        final_gradients=0.0 if away else sizes.state,
        block_copies=sizes.compute if sizes.compute < sizes.stored and eager else 0.0,
    )
