"""Predicts the best layout for several degrees of imbalance between experts."""

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from platform.common.errors import InputError
from platform.cost_model.hardware import ClusterSpec
from platform.plan.networks import show_best
from platform.plan.sizes import AtSize, at_size
from search_spaces.space import Space

MOST_UNEVEN = 1000.0
_ABOUT = "balance: rows that the fullest rank has for its experts over the mean; without ep every rank has as many"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AtBalance:
    """The best layout at one balance, or the reason why none fits."""

    fullest: float
    """Token rows on the fullest rank divided by the mean."""
    best: AtSize


def parse_balances(written: str) -> tuple[float, ...]:
    """Parses balances such as `1,1.3,2`.

    Raises:
        InputError: a value is not a number of at least 1.
    """
    balances: list[float] = []
    for text in written.split(","):
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 1 <= value <= MOST_UNEVEN:
            raise InputError(f"--balance takes numbers from 1 to {MOST_UNEVEN:g}, as in 1,1.3,2, got {text!r}")
        balances.append(value)
    return tuple(dict.fromkeys(balances))


def by_balance(space: Space, cluster: ClusterSpec, balances: Sequence[float]) -> tuple[AtBalance, ...]:
    """Returns the best layout of the space's first recipe at each balance.

    Raises:
        InputError: the model has no experts.
    """
    if not space.recipe.model.num_experts:
        raise InputError(f"--balance is for a model with experts, {space.recipe.model.name} has none: leave it out")
    return tuple(
        AtBalance(fullest=fullest, best=at_size(space, space.recipe, cluster, fullest=fullest)) for fullest in balances
    )


def show_balances(rows: Sequence[AtBalance], tokens: float, console: Console) -> None:
    show_best("balance", [(row.fullest, row.best) for row in rows], tokens, console, about=_ABOUT)
