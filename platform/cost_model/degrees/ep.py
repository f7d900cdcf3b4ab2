"""Seconds of expert parallelism: a token goes once to each rank with some of its experts, and one row comes back."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share
from platform.cost_model.links import Ring

SYNC_S = constants.number("experts", "SYNC_S")


NOTE_BYTES = 8.0
"""Bytes that go beside a row for each of its experts there: a weight and a place (`trainers/kernels/dispatch.py`)."""


def rows_of_token(c: Columns) -> Array:
    """Returns the ranks that have some of a token's experts, the mean over tokens that choose different ones evenly; on
    the fullest rank as many more as it has more than the mean, all ranks' tokens at most.
    """
    num_experts, chosen, ranks = c.blocks["num_experts"], c.blocks["experts_per_token"], c.parts("experts")
    missed = np.ones(())  # the chance that a rank has none of them, drawn without putting back
    with np.errstate(divide="ignore", invalid="ignore"):  # of rows without experts
        for drawn in range(int(np.max(chosen, initial=0.0))):
            elsewhere = np.maximum(num_experts * (1 - 1 / ranks) - drawn, 0.0) / (num_experts - drawn)
            missed = missed * np.where(drawn < chosen, elsewhere, 1.0)
    return np.minimum(ranks * (1 - missed) * c.blocks["fullest"], ranks)


def block_s(c: Columns, tokens: Array, full: Mask) -> Array:
    """Returns the seconds of one block and micro-batch: in each pass rows are exchanged there and back, and again where
    the forward pass is repeated (arXiv 2006.16668, section 3.2), all as late as the fullest rank's. Each forward pass
    the device waits for the host, which reads how many rows there are.
    """
    ring = Ring.along(c, "ep")
    rows = tokens * rows_of_token(c) * c.hidden * c.compute_bytes
    notes = tokens * c.blocks["experts_per_token"] * c.blocks["fullest"] * NOTE_BYTES
    forwards = 1.0 + c.blocks["counted_ahead"] + np.where(full, checkpointed_share(c), c.selective_checkpointing)
    exchanged = (2 * forwards + 2) * ring.exchange_s(rows) + (forwards + 1) * ring.exchange_s(notes)
    counts = forwards * (ring.exchange_s(np.zeros(())) + SYNC_S)
    return np.where(ring.ranks > 1, c.blocks["experts_share"] * (exchanged + counts), 0.0)
