"""Costs of each kind of block (`trainers.spec.blocks`), one file per kind, and their means over a model's blocks."""

import functools
import importlib
from collections.abc import Callable

import numpy as np

from platform.cost_model.blocks.dense import DenseCosts, residual_value_bytes
from platform.cost_model.columns import Array, Columns
from trainers.spec.blocks import KINDS

__all__ = ["DenseCosts", "mean", "residual_value_bytes"]

_DENSE = DenseCosts()
_NAMES = tuple(dict.fromkeys(kind.costs for kind in KINDS))


@functools.cache
def _costs_of(name: str) -> DenseCosts:
    return _DENSE if name == "dense" else importlib.import_module(f"{__name__}.{name}").COSTS


def mean(c: Columns, ask: Callable[[DenseCosts], tuple[Array, ...]]) -> tuple[Array, ...]:
    """Returns the means over a model's blocks of the values that `ask` returns for each kind."""
    shares = {name: share for name in _NAMES if np.any((share := c.blocks[f"{name}_share"]) > 0)}
    if len(shares) == 1:
        return ask(_costs_of(*shares))
    with np.errstate(divide="ignore", invalid="ignore"):  # rows without the kind have sizes of 0
        figures_by_name = {name: ask(_costs_of(name)) for name in shares}
    figures = [
        [np.where(share > 0, share * figure, 0.0) for figure in figures_by_name[name]] for name, share in shares.items()
    ]
    return tuple(functools.reduce(np.add, kinds) for kinds in zip(*figures, strict=True))
