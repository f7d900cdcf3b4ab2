"""The guided search beside an exhaustive one on the same devices, and their winners run again in turn. Run

python -m benchmarks.guided_beside_exhaustive NAME SPACE [--runs N] [options of platform.search]

Three studies, NAME-guided, NAME-sweep (every layout, every micro-batch) and NAME-winners (the two winners, A B B A, in
fresh processes); a command that was cut short goes on where it stopped. The exhaustive study's table is a grid for
`platform.replay`.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.winners import TITLES, in_turn, search, told
from platform.study.folder import default_folder


def main() -> int:
    """Runs what is missing of the three studies, then prints them beside each other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("space")
    parser.add_argument("--runs", type=int, default=3, help="runs of each winner in the end (default: %(default)s)")
    parser.add_argument("--studies", type=Path, default=Path(default_folder()))
    options, of_search = parser.parse_known_args()
    studies: Path = options.studies.absolute()
    begin = [options.space, "--repeats", "0"]
    guided = search(studies, f"{options.name}-guided", begin, of_search)
    exhaustive = search(studies, f"{options.name}-sweep", [*begin, "--searcher", "sweep"], of_search)
    print("\n".join([TITLES, told("guided", guided), told("exhaustive", exhaustive)]))
    print(f"device seconds of the guided search: {guided['gpu_s'] / exhaustive['gpu_s']:.1%} of the exhaustive one's")
    if guided["winner"]["id"] == exhaustive["winner"]["id"]:
        print("both found the same point")
        return 0
    names = [f"{options.name}-{kind}" for kind in ("guided", "sweep")]
    in_turn(studies, names, f"{options.name}-winners", runs=options.runs, options=of_search)
    return 0


if __name__ == "__main__":
    sys.exit(main())
