"""Seconds of context parallelism: keys and values of a sequence's parts go from rank to rank."""

import numpy as np

from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share
from platform.cost_model.links import Ring


def block_s(c: Columns, tokens: Array, full: Mask) -> Array:
    """Returns the seconds of one block and micro-batch: keys and values go round a ring in each pass, as far as
    attention does not hide it; a third round returns their gradients (Ring Attention, arXiv 2310.01889, section 3).
    Half is assumed hidden.

    This project's blocks gather keys and values in one collective, which attention waits for, and scatter their
    gradients. Recomputation gathers them again.
    """
    ring = Ring.along(c, "cp")
    gathered = tokens * ring.ranks * 2 * c.kv_width / c.parts("width") * c.compute_bytes
    rounds = 0.5 * 3 * gathered * (ring.ranks - 1) / ring.ranks / ring.bandwidth
    apart = 2.0 + np.where(full, checkpointed_share(c), c.selective_checkpointing)
    return np.where(ring.ranks > 1, np.where(c.own_mesh > 0, apart * ring.gather_s(gathered), rounds), 0.0)
