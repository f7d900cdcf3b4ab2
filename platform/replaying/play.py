"""Plays a searcher against the cells of a table, and scores how soon it came within 2 % of the best."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.replaying.recorded import Cell, Recorded
from platform.searchers import Searcher
from platform.searchers.sweep import Sweep

NAMES = ("guided", "model", "random", "grid", "optuna", "largest-batch")
"""Searchers and baselines, by the name that `--searcher` takes."""
JSON_KEYS = ("trials_to_2pct_median", "trials_to_2pct_mean", "gpu_s_to_2pct_median", "found_share")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """One search of one cell."""

    tried: tuple[Recorded, ...]
    """In order, up to the first within 2 % of the best, or to the budget's end."""
    found: bool
    budget: int
    """Trials that were allowed."""

    @property
    def num_trials(self) -> int:
        """Trials that it took; all that were allowed where the search ended without finding it, so that giving up early
        does not count as being quick."""
        return len(self.tried) if self.found else self.budget

    @property
    def gpu_s(self) -> float:
        """Device seconds of all its trials."""
        return sum(each.gpu_s for each in self.tried)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Over searches. One that found nothing counts with all the trials of its budget: see `found_share`."""

    trials_to_2pct_median: float
    trials_to_2pct_mean: float
    gpu_s_to_2pct_median: float
    found_share: float


def make(name: str, cell: Cell, seed: int) -> Searcher[Recorded]:
    """The searcher over the cell. A baseline that is an order alone is a sweep in that order.

    Raises:
        ValueError: no such searcher.
    """
    problem = cell.problem(seed)
    if name == "model":
        ordered = cell.by_prediction()
    elif name == "grid":
        ordered = sorted(cell.choices, key=lambda each: [(str(type(value)), value) for value in each.axes.values()])
    elif name == "largest-batch":
        ordered = sorted(cell.choices, key=lambda each: -each.batch.micro_batch)
    elif name in NAMES:
        return searchers.create(name, problem)
    else:
        raise ValueError(f"unknown searcher {name!r}: there are {', '.join(NAMES)}")
    return Sweep(dataclasses.replace(problem, candidates=ordered))


def play(cell: Cell, searcher: Searcher[Recorded], budget: int) -> Played:
    """Lets the searcher choose, at most `budget` times, until it comes within 2 % of the best."""
    tried: list[Recorded] = []
    while len(tried) < budget and (choice := searcher.suggest()) is not None:
        tried.append(choice)
        if cell.is_found(choice):
            return Played(tried=tuple(tried), found=True, budget=budget)
        searcher.update(choice, [choice])
    return Played(tried=tuple(tried), found=False, budget=budget)


def figures(played: Sequence[Played]) -> Figures:
    """The figures of searches, of one cell or of several."""
    trials = [each.num_trials for each in played]
    return Figures(
        trials_to_2pct_median=float(statistics.median(trials)),
        trials_to_2pct_mean=statistics.fmean(trials),
        gpu_s_to_2pct_median=statistics.median(each.gpu_s for each in played),
        found_share=statistics.fmean(each.found for each in played),
    )


def to_json(value: Figures) -> dict[str, Any]:
    """The figures by their names in `--json`."""
    return {key: getattr(value, key) for key in JSON_KEYS}
