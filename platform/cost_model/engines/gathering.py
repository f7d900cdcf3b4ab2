"""Parameters that stand whole on a rank where its engine shards them and gathers them block by block."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns

LIVE_PARAMETERS = constants.number("deepspeed", "LIVE_PARAMETERS")


def of_units(c: Columns, block: Array) -> Array:
    """Of FSDP2's units of `block` parameters: the one that computes and those gathered ahead, by default the next."""
    ahead = np.maximum(c.axes["prefetch"], 1.0)
    return (1 + ahead) * block


def of_modules(c: Columns, *, block: Array, root: Array, whole: Array) -> Array:
    """Of ZeRO-3's modules, of which the blocks hold `whole` and `root` is outside: up to a set number stays gathered;
    where the layout sets how many blocks ahead, one block and what is outside the blocks beside them.
    """
    ahead = c.axes["prefetch"]
    live = np.minimum(np.minimum(LIVE_PARAMETERS, whole + root), np.maximum(2 * block, root))
    return np.where(ahead > 0, np.minimum((1 + ahead) * block + root, whole + root), live)
