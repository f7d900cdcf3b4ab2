"""Measures what the guided search is worth without a cost model, as for a training of the user's own, beside TPE. Run

python -m benchmarks.without_predictions TABLE.csv [TABLE.csv ...] [--seeds 200] [--searcher guided,optuna] [--model]

Each seed is another order of a cell's rows, for both searchers alike, and seeds TPE. A line for each cell of 20
configurations and more, and one for all of them of a table: trials to within 2 % of a cell's best, median and mean over
seeds, and the median regret, the share by which the best of the first 10 trials stays below the best. With --model
the rows' predictions, without any fact fitted to their software, are given as those of a model that stands in for the
training: lines "with model" follow.
"""

import argparse
import contextlib
import dataclasses
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from benchmarks.leave_one_table_out import software_left_out
from platform.common.errors import InputError
from platform.search.setup.guesses import blind
from platform.searchers.problem import Problem
from platform.validate.replaying.command import LARGE, read_cells
from platform.validate.replaying.recorded import Recorded, RecordedCell

FIRST = 10
"""Trials after which the regret is taken."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each cell and searcher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--seeds", type=int, default=200, metavar="S", help="orders of each cell (default 200)")
    parser.add_argument("--searcher", default="guided,optuna", metavar="NAME,...", help="searchers to compare")
    parser.add_argument("--least", type=int, default=LARGE, metavar="N", help="configurations of a cell (default 20)")
    parser.add_argument("--model", action="store_true", help="also with a model that stands in for the training")
    options = parser.parse_args(arguments)
    players = [(name, False) for name in options.searcher.split(",")]
    players += [("guided", True)] if options.model else []
    logging.getLogger("ray").setLevel(logging.ERROR)
    print(f"{'cell':44}{'rows':>5}  {'searcher':10}{'median':>7}{'mean':>7}{'regret':>8}")
    for table in options.tables:
        with software_left_out(table) if options.model else contextlib.nullcontext():
            _print_table(table, players, seeds=options.seeds, least=options.least)


def _print_table(table: Path, players: Sequence[tuple[str, bool]], *, seeds: int, least: int) -> None:
    """Prints the lines of one table; `players` are searchers, each with whether a model stands in."""
    try:
        compared, _ = read_cells([table])
    except InputError:  # nothing to search in it
        return
    of_table: dict[str, list[tuple[int, float]]] = {}
    cells = [cell for cell in compared if len(cell.choices) >= least]
    for cell in cells:
        for searcher, stands_in in players:
            searches = [search(cell, searcher, seed, stands_in=stands_in) for seed in range(seeds)]
            player = "with model" if stands_in else searcher
            of_table.setdefault(player, []).extend(searches)
            print(_line(f"{table.stem} {' '.join(cell.name[2:])}", len(cell.choices), player, searches), flush=True)
    for searcher, searches in of_table.items():
        rows = sum(len(cell.choices) for cell in cells)
        print(_line(f"{table.stem}, {len(cells)} cells", rows, searcher, searches), flush=True)


def _line(name: str, rows: int, searcher: str, searches: Sequence[tuple[int, float]]) -> str:
    trials = [trials for trials, _ in searches]
    median, mean = statistics.median(trials), statistics.fmean(trials)
    regret = statistics.median(regret for _, regret in searches)
    return f"{name:44.44}{rows:5d}  {searcher:10}{median:7g}{mean:7.1f}{regret:8.2%}"


def search(cell: RecordedCell, searcher: str, seed: int, *, stands_in: bool = False) -> tuple[int, float]:
    """Returns the trials to within 2 % of the cell's best, and the regret after the first ones; `stands_in` as in
    `Problem`.
    """
    order = np.random.default_rng(seed).permutation(len(cell.choices))
    problem: Problem[Recorded] = cell.problem(seed)
    columns = blind(problem.columns.take(order)) if stands_in and problem.columns is not None else None
    problem = dataclasses.replace(
        problem, candidates=[cell.choices[place] for place in order], columns=columns, stands_in=stands_in
    )
    player = searchers.create(searcher, problem)
    speeds: list[float] = []
    needed = 0
    while (len(speeds) < FIRST or not needed) and (choice := player.suggest()) is not None:
        player.update(choice, [choice])
        speeds.append(choice.tokens_per_s or 0.0)
        if not needed and cell.is_found(choice):
            needed = len(speeds)
    return needed or len(cell.choices), 1 - max(speeds[:FIRST]) / cell.best_tokens_per_s


if __name__ == "__main__":
    main()
