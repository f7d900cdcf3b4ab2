"""Runs a searcher on the cells of a table, and scores how soon it comes within 2 % of the best."""

import dataclasses
import statistics
from collections.abc import Sequence

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.searchers import Searcher
from platform.searchers.sweep import Sweep
from platform.validate.replaying.recorded import Recorded, RecordedCell

NAMES = ("guided", "model", "random", "grid", "optuna", "largest-batch")
"""Searchers and baselines by their names in `--searcher`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """One search of one cell."""

    trials: tuple[Recorded, ...]
    """Trials in order, up to the first within 2 % of the best, or to the end of the budget."""
    is_found: bool
    budget: int
    """Number of trials allowed."""

    @property
    def num_trials(self) -> int:
        """Number of trials; the whole budget if the search found nothing, so that stopping early does not look fast."""
        return len(self.trials) if self.is_found else self.budget

    @property
    def gpu_s(self) -> float:
        """Device seconds of all trials."""
        return sum(trial.gpu_s for trial in self.trials)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Means over searches, named as in `--json`. Searches without success count with the whole budget."""

    trials_to_2pct_median: float
    trials_to_2pct_mean: float
    gpu_s_to_2pct_median: float
    found_share: float


def make(name: str, cell: RecordedCell, seed: int) -> Searcher[Recorded]:
    """Returns the searcher for the cell. A baseline that is a fixed order becomes a sweep in this order.

    Raises:
        ValueError: the searcher does not exist.
    """
    problem = cell.problem(seed)
    if name == "model":
        ordered = cell.by_prediction()
    elif name == "grid":
        ordered = sorted(cell.choices, key=lambda choice: [(str(type(value)), value) for value in choice.axes.values()])
    elif name == "largest-batch":
        ordered = sorted(cell.choices, key=lambda choice: -choice.batch.micro_batch)
    elif name in NAMES:
        return searchers.create(name, problem)
    else:
        raise ValueError(f"unknown searcher {name!r}: there are {', '.join(NAMES)}")
    return Sweep(dataclasses.replace(problem, candidates=ordered))


def play(cell: RecordedCell, searcher: Searcher[Recorded], budget: int) -> Played:
    """Runs the searcher for up to `budget` trials, until one is within 2 % of the best; returns the search."""
    trials: list[Recorded] = []
    while len(trials) < budget and (choice := searcher.suggest()) is not None:
        trials.append(choice)
        if cell.is_found(choice):
            return Played(trials=tuple(trials), is_found=True, budget=budget)
        searcher.update(choice, [choice])
    return Played(trials=tuple(trials), is_found=False, budget=budget)


def figures(played: Sequence[Played]) -> Figures:
    """Returns the figures over searches of one or several cells."""
    trials = [search.num_trials for search in played]
    return Figures(
        trials_to_2pct_median=float(statistics.median(trials)),
        trials_to_2pct_mean=statistics.fmean(trials),
        gpu_s_to_2pct_median=statistics.median(search.gpu_s for search in played),
        found_share=statistics.fmean(search.is_found for search in played),
    )
