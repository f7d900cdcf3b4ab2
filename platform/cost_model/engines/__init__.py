"""Costs of engines: a file each with what its data parallelism holds, moves and takes of the host, for its rows alone.

The file has the engine's name, and `COSTS` in it is an `EngineCosts`. An engine that has no file here is unknown to the
model: nothing of it is predicted, and nothing of it is left out.
"""

import importlib
from importlib.util import find_spec

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.engines.base import EngineCosts
from trainers import engines

_PUBLISHED = ("megatron",)
"""Of published tables alone; no engine of this project."""
_COSTS: dict[str, EngineCosts] = {
    name: importlib.import_module(f"{__name__}.{name}").COSTS
    for name in (*engines.names(), *_PUBLISHED)
    if find_spec(f"{__name__}.{name}")
}
ENGINES = tuple(_COSTS)
"""A row of `Columns` has the place of its engine in it, which says nothing but which one it is."""


def costs(name: str) -> EngineCosts | None:
    """The costs of the engine of that name; None where the model does not know it."""
    return _COSTS.get(name)


def costs_of(c: Columns) -> EngineCosts:
    """The costs of the one engine that all rows have.

    Raises:
        ValueError: the rows have several; `predict` parts them.
    """
    first = int(c.engine.flat[0]) if c.engine.size else 0
    if np.any(c.engine != first):
        several = ", ".join(ENGINES[int(code)] for code in np.unique(c.engine))
        raise ValueError(f"rows of one engine are wanted, got those of {several}")
    return _COSTS[ENGINES[first]]
