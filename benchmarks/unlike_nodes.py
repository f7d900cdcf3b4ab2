"""Prices unlike nodes: the regret of a search in 64 lanes, and what knowing their paces saves, by draws:
512 points swept, the best three run three times on one node each, the best median wins. From the checkout:

python -m benchmarks.unlike_nodes

Speeds and their noise are those of `benchmarks.side_by_side`.
"""

import argparse
import math
import random
import statistics
from collections.abc import Sequence

from benchmarks.large_study import Played, subject
from benchmarks.side_by_side import ALIKE, NODES, of_one_rung, ratios

SWEPT, FINALISTS, ROUNDS = 512, 3, 3
HOW = ("one node", "as measured", "by a reference", "by the true pace")


def regret(true: Sequence[float], chance: random.Random, noise: Sequence[float], *, how: str, spread: float) -> float:
    """Returns the winner's regret where nodes are up to `spread` apart, 0 for as far as two studies of a point."""
    alike = [ratio for ratio in noise if abs(ratio - 1) <= ALIKE]
    pace = [chance.uniform(1 - spread, 1 + spread) if spread else chance.choice(alike) for _ in range(NODES)]
    pace = [1.0] * NODES if how == "one node" else pace
    figures = [speed * pace[place % NODES] * chance.choice(noise) for place, speed in enumerate(true)]
    paces = dict(enumerate(pace)) if how == "by the true pace" else dict[int, float]()
    if how == "by a reference":
        runs = [pace[node] * chance.choice(noise) for node in range(NODES)]
        paces = {node: run / statistics.median(runs) for node, run in enumerate(runs)}
    derived = [figure / paces.get(place % NODES, 1.0) for place, figure in enumerate(figures)]
    finalists = sorted(range(len(true)), key=lambda place: -derived[place])[:FINALISTS]
    runs = {
        place: [true[place] * pace[number] * chance.choice(noise) for number in range(ROUNDS)] for place in finalists
    }
    winner = max(finalists, key=lambda place: statistics.median_low(runs[place]))
    return 1 - true[winner] / max(true)


def main() -> None:
    """Prints a row for each spread of the nodes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unlike_nodes")
    parser.add_argument("--draws", type=int, default=300)
    options = parser.parse_args()
    on = subject()
    played, noise = Played(on), ratios()
    spaces = [of_one_rung(on.plan.candidates, SWEPT, seed) for seed in range(12)]
    speeds = [
        [
            played("", each.recipe, each.layout, batch).tokens_per_s or 0.0
            for each in space
            for batch in each.batch_points()
        ]
        for space in spaces
    ]
    print("nodes up to   " + "   ".join(f"{how:>16}" for how in HOW) + "   (regret %, standard error)")
    for spread in (0.0, 0.03, 0.05, 0.1):
        cells: list[str] = []
        for how in HOW:
            of_draws = [
                100 * regret(speeds[draw % 12], random.Random(draw), noise, how=how, spread=spread)
                for draw in range(options.draws)
            ]
            error = statistics.stdev(of_draws) / math.sqrt(len(of_draws))
            cells.append(f"{statistics.fmean(of_draws):9.2f} ({error:.2f})")
        print(f"{spread or 'as studies':>11}   " + "   ".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
