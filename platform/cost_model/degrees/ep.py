"""Seconds of expert parallelism: rows go to the ranks of their experts and back."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share
from platform.cost_model.links import Ring

SYNC_S = constants.number("experts", "SYNC_S")


def block_s(c: Columns, tokens: Array, full: Mask) -> Array:
    """Returns the seconds of one block and micro-batch: in each pass rows are exchanged there and back, and again where
    the forward pass is repeated (arXiv 2006.16668, section 3.2), all as late as the fullest rank's. Each forward pass
    the device waits for the host, which reads how many rows there are.
    """
    ring = Ring.along(c, "ep")
    rows = tokens * c.blocks["experts_per_token"] * c.blocks["fullest"] * c.hidden * c.compute_bytes
    forwards = 1.0 + np.where(full, checkpointed_share(c), c.selective_checkpointing)
    exchanged = (2 * forwards + 2) * ring.exchange_s(rows)
    counts = forwards * (ring.exchange_s(np.zeros(())) + SYNC_S)
    return np.where(ring.ranks > 1, c.blocks["experts_share"] * (exchanged + counts), 0.0)
