"""What to try next. A searcher knows no Ray, no clock and no files: it sees candidates and measurements."""

import contextlib
import importlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from platform.searchers.problem import C, Problem, Result


class Searcher(Protocol[C]):
    """Picks candidates one after another and learns from what they measured.

    Made from a `Problem`. The same problem and history give the same suggestions.
    """

    @property
    def why_stopped(self) -> str:
        """Why `suggest` gives nothing more, as the end of a sentence; it says so once `suggest` has given None."""
        ...

    def suggest(self) -> C | None:
        """The candidate to run next, with the rungs to climb, ascending; or None when nothing is worth running.

        Its rungs may be fewer than the problem's: the others are then not worth their time, for now. Without `update`
        it gives the same answer again.
        """
        ...

    def update(self, candidate: C, measurements: Sequence[Result]) -> None:
        """Takes all that trials of `candidate` measured; an empty sequence means that nothing came back.

        The rungs that `candidate` names need no further trial, whatever came of them.
        """
        ...


@runtime_checkable
class RungSearcher(Searcher[C], Protocol[C]):
    """A searcher that picks single rungs; any other one suggests whole ladders, but for what is settled of them."""

    def held_back(self, candidate: C) -> tuple[int, ...]:
        """Rungs of the candidate, ascending, that it does not suggest since they are likely to run out of memory."""
        ...


_REGISTRY = {
    "guided": "platform.searchers.guided:Guided",
    "sweep": "platform.searchers.sweep:Sweep",
    "random": "platform.searchers.sweep:Shuffle",
    "optuna": "platform.searchers.optuna:OptunaSearcher",
}

NAMES = tuple(_REGISTRY)
"""Searchers by the name that `--searcher` takes."""


def create(name: str, problem: Problem[C]) -> Searcher[C]:
    """The searcher of that name. Imports that searcher's library only.

    Raises:
        ValueError: no such searcher.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown searcher {name!r}: there are {', '.join(_REGISTRY)}")
    module, _, kind = _REGISTRY[name].partition(":")
    made: Any = getattr(importlib.import_module(module), kind)
    return made(problem)


def preload(name: str) -> None:
    """Begins to import what `create` will, beside other work: seconds, for scikit-learn."""

    def load() -> None:
        with contextlib.suppress(Exception):  # `create` meets it again, and raises
            importlib.import_module(_REGISTRY[name].partition(":")[0])

    # `concurrent.futures.thread` registers what a fork calls before and after it. Imported by this thread while another
    # one forks, it would release a lock that was never taken, and Python would print that.
    importlib.import_module("concurrent.futures.thread")
    # No daemon: one that the interpreter's end stops in the middle of a C++ library's import takes it down.
    threading.Thread(target=load, name="searcher-import").start()
