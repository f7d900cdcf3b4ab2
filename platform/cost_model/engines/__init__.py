"""Costs of engines, one file each: memory, traffic and host time of the engine's data parallelism.

The file has the engine's name and an `EngineCosts` named `COSTS`. An engine outside this project names its costs in
`Rules.costs`. An engine with neither is unknown to the model: its layouts are not predicted and not excluded.
"""

import importlib
import sys
from importlib.util import find_spec

import numpy as np

from platform.common.errors import InputError
from platform.cost_model.columns import Columns
from platform.cost_model.engines.base import EngineCosts
from trainers.spec import engines

_COSTS: dict[str, EngineCosts] = {
    name: importlib.import_module(f"{__name__}.{name}").COSTS
    for name in (*engines.names(), *engines.predicted())
    if find_spec(f"{__name__}.{name}")
}
ENGINES = tuple(_COSTS)
"""Names of the engines with a file here."""


def costs(name: str) -> EngineCosts | None:
    """Returns the costs of the engine; None if the model does not know it.

    An engine outside this project counts only after its rules have been imported, because reading a journal imports
    nothing.
    """
    is_imported = ":" in name and name.partition(":")[0] in sys.modules
    if is_imported and name not in _COSTS and (path := engines.imported_rules(name).costs):
        module, _, attribute = path.partition(":")
        _COSTS[name] = getattr(importlib.import_module(module), attribute)
    return _COSTS.get(name)


def import_costs(name: str) -> None:
    """Imports an engine outside this project that a user names, so that the model knows its costs.

    Raises:
        InputError: the engine cannot be imported, or its rules name no costs.
    """
    try:
        engines.imported_rules(name)
    except ValueError as error:
        raise InputError(str(error)) from error
    if costs(name) is None:
        raise InputError(f"engine {name} has no costs in its rules (Rules.costs): nothing of it can be predicted")


def has_own_mesh(name: str) -> bool:
    """Returns whether `trainers/mesh` splits the models of the engine."""
    return name not in engines.predicted() and bool(engines.rules_of(name).model_parallel)


def code_of(name: str) -> int:
    """Returns the identifier of an engine with costs in `Columns.engine`."""
    return list(_COSTS).index(name)


def costs_of(c: Columns) -> EngineCosts:
    """Returns the costs of the one engine of all rows.

    Raises:
        ValueError: the rows have several engines; `predict` splits them by engine.
    """
    first = int(c.engine.flat[0]) if c.engine.size else 0
    if np.any(c.engine != first):
        several = ", ".join(list(_COSTS)[int(code)] for code in np.unique(c.engine))
        raise ValueError(f"rows of one engine are wanted, got those of {several}")
    return list(_COSTS.values())[first]
