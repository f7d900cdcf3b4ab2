"""Searchers choose the next trial. They know only candidates and measurements: no Ray, no clock, no files."""

import contextlib
import importlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from platform.searchers.problem import C, Observation, Problem


class Searcher(Protocol[C]):
    """Picks candidates one after another and learns from their measurements.

    A searcher is made from a `Problem`. The same problem and history give the same suggestions.
    """

    @property
    def stopped_reason(self) -> str:
        """Reason why `suggest` returned None, as the end of a sentence."""
        ...

    def suggest(self, running: Sequence[C] = ()) -> C | None:
        """Returns the candidate to run next with the rungs to climb, ascending; None if nothing is worth running.

        It may have fewer rungs than in the problem; the others are not worth their time for now. Without `update` the
        next call returns the same candidate. It differs from the `running` candidates, whose results are pending and
        whose `micro_batches` are the rungs that they climb.
        """
        ...

    def update(self, candidate: C, measurements: Sequence[Observation]) -> None:
        """Learns from all measurements of `candidate`; an empty sequence means that there is no result.

        The rungs in `candidate` need no further trial, whatever their outcome.
        """
        ...


@runtime_checkable
class RungSearcher(Searcher[C], Protocol[C]):
    """A searcher that picks single rungs. Other searchers suggest whole ladders without their settled rungs."""

    def deferred(self, candidate: C) -> tuple[int, ...]:
        """Returns the candidate's rungs, ascending, that are held back because they may run out of memory."""
        ...

    def overhear(self, candidate: C, measurements: Sequence[Observation]) -> None:
        """Learns from the measurements of a candidate of `Problem.others`, which are never suggested."""
        ...


_REGISTRY = {
    "guided": "platform.searchers.guided:Guided",
    "sweep": "platform.searchers.sweep:Sweep",
    "random": "platform.searchers.sweep:Shuffle",
    "optuna": "platform.searchers.optuna:OptunaSearcher",
}

NAMES = tuple(_REGISTRY)
"""Names that `--searcher` accepts."""


def create(name: str, problem: Problem[C]) -> Searcher[C]:
    """Returns the searcher of that name. Imports only that searcher's library.

    Raises:
        ValueError: there is no such searcher.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown searcher {name!r}: there are {', '.join(_REGISTRY)}")
    module, _, kind = _REGISTRY[name].partition(":")
    make: Any = getattr(importlib.import_module(module), kind)
    return make(problem)


def preload(name: str) -> None:
    """Starts importing in the background the module that `create` will need, with the cost model and numpy."""

    def load() -> None:
        with contextlib.suppress(Exception):  # `create` imports again, and raises the error
            importlib.import_module(_REGISTRY[name].partition(":")[0])

    # `concurrent.futures.thread` registers functions that a fork calls before and after it. If the thread below
    # imported it while another thread forks, the fork would release a lock that was never acquired, and Python would
    # print an error.
    importlib.import_module("concurrent.futures.thread")
    # Not a daemon thread: the interpreter would crash if it stopped one at exit in the middle of a C++ library's
    # import.
    threading.Thread(target=load, name="searcher-import").start()
