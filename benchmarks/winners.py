"""Winners of several studies, measured again in turn: A B B A, in fresh processes of one study."""

import argparse
import json
import signal
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

from benchmarks.winners import space_of


def space():
    return space_of([Path(path) for path in {paths!r}])
"""


def read_options(what: str) -> tuple[argparse.Namespace, list[str]]:
    """Options of a command that compares studies, and those that are the search's; `what` it does, in a line."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("name")
    parser.add_argument("space")
    parser.add_argument("--runs", type=int, default=3, help="runs of each winner in the end (default: %(default)s)")
    parser.add_argument("--studies", type=lambda path: Path(path).absolute(), default=Path(default_folder()).absolute())
    return parser.parse_known_args()


def search(studies: Path, name: str, begin: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    """The result of the study of that name, as `--json` prints it: resumed where it exists, else begun with `begin`.

    Of the search's `options` those of the session hold for a resumed study too: the time budget.

    Raises:
        SystemExit: the search failed.
    """
    command = [sys.executable, "-m", "platform.search", *arguments(studies, name, begin, options), "--json"]
    # The search gets Ctrl-C too, and ends its trial in its own time. `timeout -s INT` sends it here twice.
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said, _ = running.communicate()
    signal.signal(signal.SIGINT, before)
    if running.returncode or interrupts:
        how = "was interrupted" if interrupts else f"ended with exit code {running.returncode}"
        sys.exit(f"the study {name} {how}; the same command goes on with it")
    return json.loads(said)


def arguments(studies: Path, name: str, begin: Sequence[str], options: Sequence[str]) -> list[str]:
    """What follows `platform.search` to begin the study, or to go on with it."""
    if not (studies / name / "journal.jsonl").exists():
        return [*begin, "--name", name, "--studies", str(studies), *options]
    budget = options[options.index("--time-budget-s") :][:2] if "--time-budget-s" in options else []
    return ["--resume", name, "--studies", str(studies), *budget]


def in_turn(studies: Path, names: Sequence[str], name: str, *, runs: int, options: Sequence[str]) -> None:
    """Measures the winners of the studies of these `names` again, in one of that `name`, and prints what came out.

    A time budget among the `options` was that of the searches.
    """
    options = list(options)
    if "--time-budget-s" in options:
        place = options.index("--time-budget-s")
        del options[place : place + 2]
    file = studies / f"{name}.py"
    file.write_text(_SPACE_FILE.format(paths=[str(studies / each / "layout.json") for each in names]))
    again = search(studies, name, [str(file), "--all", "--repeats", str(runs)], options)
    for each in again["runs"]:
        print(f"{each['layout']} micro-batch {each['batch']['micro_batch']}: {each['tokens_per_s']} tokens/s")
    for each in again["comparisons"]:
        print(
            f"winner over the other: {each['ratio']:.4f}, 95 % interval {each['low']:.4f} to {each['high']:.4f}:"
            f" {each['resolution']}"
        )


def told(kind: str, result: dict[str, Any]) -> str:
    """What a study tried and found, in one line."""
    best, tried = result["winner"], result["measurements"]
    layouts = len({each["layout"]["id"] for each in tried})
    return (
        f"{kind:12} {layouts:8} {len(tried):7} {result['gpu_s']:9.0f}   {best['layout']['label']}, micro-batch"
        f" {best['batch']['micro_batch']}: {best['tokens_per_s']:,.0f} tokens/s"
    )


TITLES = f"{'':12} {'layouts':>8} {'points':>7} {'device s':>9}   winner"
"""Above the lines of `told`."""


def space_of(paths: Sequence[Path]) -> Space:
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
