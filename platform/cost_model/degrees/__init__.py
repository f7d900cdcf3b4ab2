"""Exchanges that a block waits for, of degrees that leave it as it is: a file each, named as the degree.

`block_s(c, tokens, full)` in it returns the seconds of one block and micro-batch; `full` are the rows of recomputed
blocks. Degrees that cut layers or the model are in `mesh`.
"""

import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from platform.cost_model.columns import DEGREES, Array, Columns, Mask

_COSTS = {name: importlib.import_module(f"{__name__}.{name}") for name in DEGREES if find_spec(f"{__name__}.{name}")}


def blocks_s(c: Columns, tokens: Array, full: Mask) -> Iterator[tuple[str, Array]]:
    """Yields each of these degrees with its seconds of one block and micro-batch."""
    for name, costs in _COSTS.items():
        yield name, costs.block_s(c, tokens, full)
