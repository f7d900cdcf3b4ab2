"""Seconds of expert parallelism: a token is sent once to each rank with some of its experts, and one row returns."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share
from platform.cost_model.links import Ring

SYNC_S = constants.number("experts", "SYNC_S")


NOTE_BYTES = 8.0
"""Bytes sent with a row for each of its experts there: a weight and a position (`trainers/kernels/dispatch.py`)."""


def rows_of_token(c: Columns) -> Array:
    """Returns the number of ranks with some of a token's experts, the mean over tokens with evenly distributed choices.
    It is scaled by the fullest rank's excess over the mean, up to all ranks.
    """
    num_experts, chosen, ranks = c.blocks["num_experts"], c.blocks["experts_per_token"], c.parts("experts")
    missed = np.ones(())  # probability that a rank has none of them, drawn without replacement
    with np.errstate(divide="ignore", invalid="ignore"):  # rows without experts
        for drawn in range(int(np.max(chosen, initial=0.0))):
            elsewhere = np.maximum(num_experts * (1 - 1 / ranks) - drawn, 0.0) / (num_experts - drawn)
            missed = missed * np.where(drawn < chosen, elsewhere, 1.0)
    return np.minimum(ranks * (1 - missed) * c.blocks["fullest"], ranks)


def block_s(c: Columns, tokens: Array, full: Mask) -> Array:
    """Returns the seconds of one block and micro-batch: rows are exchanged there and back in each pass, again if the
    forward pass is repeated (arXiv 2006.16668, section 3.2), and take as long as the fullest rank's. In each forward
    pass the device waits for the host, which reads the number of rows.
    """
    ring = Ring.along(c, "ep")
    rows = tokens * rows_of_token(c) * c.hidden * c.compute_bytes
    notes = tokens * c.blocks["experts_per_token"] * c.blocks["fullest"] * NOTE_BYTES
    forwards = 1.0 + c.blocks["counted_ahead"] + np.where(full, checkpointed_share(c), c.selective_checkpointing)
    exchanged = (2 * forwards + 2) * ring.exchange_s(rows) + (forwards + 1) * ring.exchange_s(notes)
    counts = forwards * (ring.exchange_s(np.zeros(())) + SYNC_S)
    return np.where(ring.ranks > 1, c.blocks["experts_share"] * (exchanged + counts), 0.0)
