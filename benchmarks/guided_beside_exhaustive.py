"""The guided search beside an exhaustive one on the same devices, and their winners run again in turn. Run

python -m benchmarks.guided_beside_exhaustive NAME SPACE [--runs N] [options of platform.search]

Three studies, NAME-guided, NAME-sweep (every layout, every micro-batch) and NAME-winners (the two winners, A B B A, in
fresh processes); a command that was cut short goes on where it stopped. The exhaustive study's table is a grid for
`platform.replay`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from platform.reports.files import read_layout
from platform.study.folder import default_folder
from search_spaces.space import Point, Space
from trainers.codec import to_json

_SPACE_FILE = """from pathlib import Path

from benchmarks.guided_beside_exhaustive import winners_space


def space():
    return winners_space([Path(path) for path in {paths!r}])
"""


def main() -> int:
    """Runs what is missing of the three studies, then prints them beside each other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("space")
    parser.add_argument("--runs", type=int, default=3, help="runs of each winner in the end (default: %(default)s)")
    parser.add_argument("--studies", type=Path, default=Path(default_folder()))
    options, of_search = parser.parse_known_args()
    studies: Path = options.studies.absolute()

    def study(kind: str, arguments: Sequence[str]) -> dict[str, Any]:
        name = f"{options.name}-{kind}"
        known = (studies / name / "journal.jsonl").exists()
        begin = ["--resume", name] if known else [*arguments, "--name", name]
        budget = of_search[of_search.index("--time-budget-s") :][:2] if "--time-budget-s" in of_search else []
        command = [sys.executable, "-m", "platform.search", *begin, "--studies", str(studies), "--json"]
        done = subprocess.run([*command, *(budget if known else of_search)], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"the study {name} ended with exit code {done.returncode}; the same command goes on with it")
        return json.loads(done.stdout)

    found = {
        "guided": study("guided", [options.space, "--repeats", "0"]),
        "exhaustive": study("sweep", [options.space, "--repeats", "0", "--searcher", "sweep"]),
    }
    print(f"{'':12} {'layouts':>8} {'points':>7} {'device s':>9}   winner")
    for kind, result in found.items():
        best, tried = result["winner"], result["measurements"]
        layouts = len({each["layout"]["id"] for each in tried})
        print(
            f"{kind:12} {layouts:8} {len(tried):7} {result['gpu_s']:9.0f}   {best['layout']['label']}, micro-batch"
            f" {best['batch']['micro_batch']}: {best['tokens_per_s']:,.0f} tokens/s"
        )
    guided, exhaustive = found["guided"], found["exhaustive"]
    print(f"device seconds of the guided search: {guided['gpu_s'] / exhaustive['gpu_s']:.1%} of the exhaustive one's")
    if guided["winner"]["id"] == exhaustive["winner"]["id"]:
        print("both found the same point")
        return 0
    file = studies / f"{options.name}-winners.py"
    paths = [str(studies / f"{options.name}-{kind}" / "layout.json") for kind in ("guided", "sweep")]
    file.write_text(_SPACE_FILE.format(paths=paths))
    again = study("winners", [str(file), "--all", "--repeats", str(options.runs)])
    for each in again["runs"]:
        print(f"{each['layout']} micro-batch {each['batch']['micro_batch']}: {each['tokens_per_s']} tokens/s")
    for each in again["comparisons"]:
        print(
            f"winner over the other: {each['ratio']:.4f}, 95 % interval {each['low']:.4f} to {each['high']:.4f}:"
            f" {each['resolution']}"
        )
    return 0


def winners_space(paths: Sequence[Path]) -> Space:
    """The points of these `layout.json`s, named by their studies, of one recipe."""
    files = {path.parent.name: read_layout(path) for path in paths}
    first = next(iter(files.values()))
    assert first.recipe is not None
    return Space(
        name="winners",
        summary="winners of other studies, measured again in turn",
        recipe=first.recipe,
        axes={},
        points=tuple(
            Point(name=name, micro_batch=each.batch.micro_batch, layout=to_json(each.layout))
            for name, each in files.items()
            if each.batch is not None
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
