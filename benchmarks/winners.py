"""Measures winners of several studies again in turn: A B B A, in fresh processes of one study."""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from platform.report.json_report import as_json
from platform.study.folder import default_folder
from platform.study.layout_file import read_layout
from platform.study.result.result import StudyResult
from platform.study.study import is_study, read
from search_spaces.space import Point, Space
from trainers.spec.codec import to_json

_SPACE_FILE = """from pathlib import Path

from benchmarks.winners import space_of


def space():
    return space_of([Path(path) for path in {paths!r}])
"""


_OF_A_SEARCH = (
    *("--set", "--searcher", "--seed", "--learn-from", "--layout", "--data", "--max-trials"),
    *("--time-budget-s", "--gpu-s"),
)
"""Options of `platform.search` on what is searched, how and for how long, which named points do not need."""


def read_options(description: str) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options of a command that compares studies, and those of the search; `description` is the line that
    --help prints of the command.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name")
    parser.add_argument("space")
    parser.add_argument("--runs", type=int, default=3, help="runs of each winner in the end (default: %(default)s)")
    parser.add_argument("--studies", type=lambda path: Path(path).absolute(), default=Path(default_folder()).absolute())
    return parser.parse_known_args()


def search(
    studies: Path, name: str, begin: Sequence[str], options: Sequence[str], *, spent_s: float = 0.0
) -> dict[str, Any]:
    """Returns the result of the study of that name, as `--json` prints it: begun with `begin` where there is none,
    resumed where its last session was cut, and read where that ended by itself, by a budget too.

    Of the search's `options` a time budget holds for all its sessions together. `spent_s` is what earlier ones took,
    where that is known: of one that was killed the journal does not tell how long Ray's start took.

    Raises:
        SystemExit: the search failed.
    """
    if is_study(studies / name):
        history, _ = read(studies / name)
        if history.end is not None and history.end.exit_code == 0:
            return as_json(StudyResult.of(history))
    command = [sys.executable, "-m", "platform.search", *arguments(studies, name, begin, options, spent_s), "--json"]
    # The search gets Ctrl-C too, and ends its trial in its own time. `timeout -s INT` sends it here twice.
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output, _ = running.communicate()
    signal.signal(signal.SIGINT, before)
    if running.returncode or interrupts:
        ending = "was interrupted" if interrupts else f"ended with exit code {running.returncode}"
        sys.exit(f"the study {name} {ending}; the same command goes on with it")
    return json.loads(output)


def arguments(
    studies: Path, name: str, begin: Sequence[str], options: Sequence[str], spent_s: float = 0.0
) -> list[str]:
    """Returns the arguments of `platform.search` that begin the study, or resume it for the time that its budget has
    left.
    """
    if not is_study(studies / name):
        return [*begin, "--name", name, "--studies", str(studies), *options]
    budget: list[str] = []
    if "--time-budget-s" in options:
        whole_s = float(options[options.index("--time-budget-s") + 1])
        spent_s = max(spent_s, read(studies / name)[0].wall_s)
        budget = ["--time-budget-s", str(max(1.0, whole_s - spent_s))]
    return ["--resume", name, "--studies", str(studies), *budget]


def in_turn(studies: Path, names: Sequence[str], name: str, *, runs: int, options: Sequence[str]) -> None:
    """Measures the winners of the studies of these `names` again, in one of that `name`, and prints the results.

    Of the `options` those go on that are no search's own.
    """
    file = studies / f"{name}.py"
    file.write_text(_SPACE_FILE.format(paths=[str(studies / study_name / "layout.json") for study_name in names]))
    results = search(studies, name, [str(file), "--all", "--repeats", str(runs)], of_named_points(options))
    for result in results["runs"]:
        print(f"{result['layout']} micro-batch {result['batch']['micro_batch']}: {result['tokens_per_s']} tokens/s")
    for result in results["comparisons"]:
        print(
            f"winner over the other: {result['ratio']:.4f}, 95 % interval {result['low']:.4f} to {result['high']:.4f}:"
            f" {result['resolution']}"
        )


def of_named_points(options: Sequence[str]) -> list[str]:
    """Returns those of a search's options that a study of named points takes too: devices, memory and the like."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in _OF_A_SEARCH:
        parser.add_argument(option, action="append")
    return parser.parse_known_args(options)[1]


def point_of(result: dict[str, Any]) -> tuple[str, str, int]:
    """Returns recipe, layout and micro-batch of a study's winner; its measurement's id also states which run it was."""
    best = result["winner"]
    return best["recipe"], best["layout"]["id"], best["batch"]["micro_batch"]


def table_row(kind: str, result: dict[str, Any]) -> str:
    """Returns what a study tried and found, in one line."""
    best, measurements = result["winner"], result["measurements"]
    layouts = len({measurement["layout"]["id"] for measurement in measurements})
    return (
        f"{kind:12} {layouts:8} {len(measurements):7} {result['gpu_s']:9.0f}   {best['layout']['label']}, micro-batch"
        f" {best['batch']['micro_batch']}: {best['tokens_per_s']:,.0f} tokens/s"
    )


TITLES = f"{'':12} {'layouts':>8} {'points':>7} {'device s':>9}   winner"
"""Heading of the lines of `table_row`."""


def space_of(paths: Sequence[Path]) -> Space:
    """Returns the points of these `layout.json`s, named by their studies, of one recipe."""
    files = {path.parent.name: read_layout(path) for path in paths}
    first = next(iter(files.values()))
    assert first.recipe is not None
    return Space(
        name="winners",
        summary="winners of other studies, measured again in turn",
        recipe=first.recipe,
        axes={},
        points=tuple(
            Point(name=name, micro_batch=file.batch.micro_batch, layout=to_json(file.layout))
            for name, file in files.items()
            if file.batch is not None
        ),
    )
