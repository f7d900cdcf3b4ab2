"""Number of gathered parameters on a rank whose engine shards parameters and gathers them block by block."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns

LIVE_PARAMETERS = constants.number("deepspeed", "LIVE_PARAMETERS")


def of_units(c: Columns, block: Array) -> Array:
    """Returns the number of parameters that FSDP2 holds gathered: the computing block and the prefetched ones (by
    default the next).

    `block` is the number of parameters of a block.
    """
    ahead = np.maximum(c.axes["prefetch"], 1.0)
    return (1 + ahead) * block


def of_modules(c: Columns, *, block: Array, root: Array, blocks: Array) -> Array:
    """Returns the number of parameters that ZeRO-3 holds gathered.

    By default it keeps modules gathered up to `LIVE_PARAMETERS`. If the layout sets `prefetch`, it holds the prefetched
    blocks, the computing block and the modules outside the blocks. `block` is the number of parameters of a block,
    `blocks` of all blocks, `root` of the modules outside them.
    """
    ahead = c.axes["prefetch"]
    live = np.minimum(np.minimum(LIVE_PARAMETERS, blocks + root), np.maximum(2 * block, root))
    return np.where(ahead > 0, np.minimum((1 + ahead) * block + root, blocks + root), live)
