"""Costs of engines: a file each with what its data parallelism holds, moves and takes of the host, for its rows alone.

An engine that has no file here is unknown to the model: nothing of it is predicted, and nothing of it is left out.
"""

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.engines.base import EngineCosts
from platform.cost_model.engines.ddp import Ddp
from platform.cost_model.engines.deepspeed import DeepSpeed
from platform.cost_model.engines.fsdp import Fsdp
from platform.cost_model.engines.megatron import Megatron

_COSTS: dict[str, EngineCosts] = {"ddp": Ddp(), "fsdp": Fsdp(), "deepspeed": DeepSpeed(), "megatron": Megatron()}
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
