"""Compares the guided search with an exhaustive one on the same devices, and runs their winners again in turn. Run

python -m benchmarks.guided_beside_exhaustive NAME SPACE [--runs N] [options of platform.search]

Three studies, NAME-guided, NAME-sweep (every layout, every micro-batch) and NAME-winners (the two winners, A B B A, in
fresh processes); a command that was cut short goes on where it stopped. The exhaustive study's table is a grid for
`platform.replay`.
"""

import sys
from pathlib import Path

from benchmarks.winners import TITLES, in_turn, point_of, read_options, search, table_row


def main() -> int:
    """Runs what is missing of the three studies, then prints them beside each other."""
    options, of_search = read_options((__doc__ or "").splitlines()[0])
    studies: Path = options.studies
    begin = [options.space, "--repeats", "0"]
    guided = search(studies, f"{options.name}-guided", begin, of_search)
    exhaustive = search(studies, f"{options.name}-sweep", [*begin, "--searcher", "sweep"], of_search)
    print("\n".join([TITLES, table_row("guided", guided), table_row("exhaustive", exhaustive)]))
    print(f"device seconds of the guided search: {guided['gpu_s'] / exhaustive['gpu_s']:.1%} of the exhaustive one's")
    if point_of(guided) == point_of(exhaustive):
        print("both found the same point")
        return 0
    names = [f"{options.name}-{kind}" for kind in ("guided", "sweep")]
    in_turn(studies, names, f"{options.name}-winners", runs=options.runs, options=of_search)
    return 0


if __name__ == "__main__":
    sys.exit(main())
