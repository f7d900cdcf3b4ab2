"""What to try next. A searcher knows no Ray, no clock and no files: it sees candidates and measurements."""

import importlib
from collections.abc import Sequence
from typing import Protocol

from search_spaces.space import Candidate
from trainers.measurement import Measurement


class Searcher(Protocol):
    """Picks candidates one after another and learns from what they measured.

    Made from (candidates, seed). The same seed and history give the same suggestions.
    """

    def suggest(self) -> Candidate | None:
        """The candidate to run next, or None when nothing is left. Without `update` it gives the same answer again."""
        ...

    def update(self, candidate: Candidate, measurements: Sequence[Measurement]) -> None:
        """Takes all that a trial of `candidate` measured; an empty sequence means that nothing came back."""
        ...


_REGISTRY = {
    "sweep": "platform.searchers.sweep:Sweep",
    "random": "platform.searchers.sweep:Shuffle",
    "optuna": "platform.searchers.optuna:OptunaSearcher",
}

NAMES = tuple(_REGISTRY)
"""Searchers by the name that `--searcher` takes."""


def create(name: str, candidates: Sequence[Candidate], seed: int) -> Searcher:
    """The searcher of that name. Imports that searcher's library only.

    Raises:
        ValueError: no such searcher.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown searcher {name!r}: there are {', '.join(_REGISTRY)}")
    module, _, kind = _REGISTRY[name].partition(":")
    return getattr(importlib.import_module(module), kind)(candidates, seed)
