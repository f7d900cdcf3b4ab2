"""Measures what `guided.PASSED_OVER` costs and gains: trials of the guided search by it, over parts of tables. Run

python -m benchmarks.passed_over TABLE.csv [TABLE.csv ...] [--parts 3] [--share 0.02,0.05,0.1,0.2,1]

A part is drawn from a cell's rows, 30 to 70 % of them: the whole cells are few, and were at hand when the constant was
set. Where the share is 1, the largest expected saving alone decides; `plain` is the cost model's ranking.

Its figures: docs/lab/memory.csv#cost-memory-bounds.6.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from platform.searchers import guided
from platform.validate.replaying.command import read_cells
from platform.validate.replaying.play import make, play
from platform.validate.replaying.recorded import RecordedCell, cells

LEAST = 8
"""Configurations of a cell that parts are drawn from."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the mean trials to within 2 % of a part's best, a line a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--parts", type=int, default=3, metavar="N", help="parts of each cell (default 3)")
    parser.add_argument("--share", type=_shares, default=SHARES, metavar="X,...", help="values of the constant")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(f"{'':32}{'parts':>6}{'plain':>7}" + "".join(f"{share:>7g}" for share in options.share))
    totals: list[list[int]] = []
    for table in options.tables:
        trials = [_trials(part, options.share) for part in parts(table, options.parts, options.seed)]
        print(_line(table.name, trials))
        totals += trials
    print(_line("all", totals))


def parts(table: Path, num_parts: int, seed: int) -> Iterator[RecordedCell]:
    """Yields `num_parts` drawn parts of each cell of `LEAST` configurations and more."""
    drawn = np.random.default_rng(seed)
    for cell in read_cells([table])[0]:
        if len(cell.choices) < LEAST:
            continue
        for _ in range(num_parts):
            size = round(len(cell.choices) * drawn.uniform(0.3, 0.7))
            rows = np.sort(drawn.choice(len(cell.choices), size, replace=False))
            yield from cells([cell.runs[row] for row in rows])


def _trials(cell: RecordedCell, shares: Sequence[float]) -> list[int]:
    """Returns the trials by the plain ranking, and by the guided search at each of `shares`."""
    budget, usual = len(cell.choices), guided.PASSED_OVER
    counts = [play(cell, make("model", cell, 0), budget).num_trials]
    try:
        for guided.PASSED_OVER in shares:
            counts.append(play(cell, make("guided", cell, 0), budget).num_trials)
    finally:
        guided.PASSED_OVER = usual
    return counts


def _line(name: str, trials: Sequence[Sequence[int]]) -> str:
    means = [statistics.fmean(column) for column in zip(*trials, strict=True)]
    return f"{name:32}{len(trials):6d}" + "".join(f"{mean:7.2f}" for mean in means)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(share) for share in text.split(","))


if __name__ == "__main__":
    main()
