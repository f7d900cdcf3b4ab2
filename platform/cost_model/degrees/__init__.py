"""Exchanges within a block, for degrees that do not split its layers: one file per degree, with the degree's name.

Its `block_s(c, tokens, full)` returns the seconds of one block and micro-batch; `full` are the rows with recomputed
blocks. Degrees that split layers or the model are in `mesh`.
"""

import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from platform.cost_model.columns import DEGREES, Array, Columns, Mask

_COSTS = {name: importlib.import_module(f"{__name__}.{name}") for name in DEGREES if find_spec(f"{__name__}.{name}")}


def blocks_s(c: Columns, tokens: Array, full: Mask) -> Iterator[tuple[str, Array]]:
    """Yields each degree with its seconds of one block and micro-batch."""
    for name, costs in _COSTS.items():
        yield name, costs.block_s(c, tokens, full)
