"""Measures how soon a searcher would have found the best of recorded results, as if rows of a cell were trials.

    python -m platform.replay TABLE.csv [TABLE.csv ...]                      the guided search
    python -m platform.replay TABLE.csv --searcher random --seeds 20         a baseline
    python -m platform.replay TABLE.csv --searcher guided --trials           every trial of the first seed
    python -m platform.replay TABLE.csv --json                               the figures as one JSON object

A trial is one row and costs (20 s + 10 steps) x GPUs, an out-of-memory error 20 s x GPUs. It prints how many
trials and device seconds it took to come within 2 % of the cell's best. A cell is (model, gpu, gpus, seq_len,
global_batch) and the recipe, where the table names it; identical configurations are merged by their median first.
docs/reference/columns.md has the table's columns.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.table import Table

from platform.common.command import exit_code_of
from platform.common.errors import InputError
from platform.common.json_form import print_json, with_fields_of
from platform.common.options import CommandParser, argument, json_field, option
from platform.validate.evaluation import merged
from platform.validate.published_run import PublishedRun, RowReader, label_of
from platform.validate.replaying.play import NAMES, Figures, Played, figures, make, play
from platform.validate.replaying.recorded import RecordedCell, cells
from platform.validate.rows import read_rows

LARGE = 20
"""Number of configurations from which the figures of a cell count as evidence on a search."""


@with_fields_of(Figures)
class OverallForm(TypedDict):
    """Figures over all cells."""

    min_cell: int
    """Smallest number of configurations of a cell that counts."""
    cells: int
    """Number of cells that count."""


@with_fields_of(Figures)
class ReplayedCellForm(TypedDict):
    """Figures of one cell."""

    cell: list[str]
    """Model, device, number of devices, sequence length, global batch."""
    recipe: str
    """Hash of the recipe; empty if the table has none."""
    configurations: int
    """Number of configurations."""


class ReplayForm(TypedDict):
    """Searches over recorded results."""

    searcher: str
    """Name of the searcher."""
    budget: int | None
    """Largest number of trials of a search; null for no limit."""
    seeds: int
    """Number of searches of each cell."""
    overall: OverallForm
    """Figures over all cells."""
    cells: list[ReplayedCellForm]
    """Figures by cell."""


def read_cells(paths: Sequence[Path]) -> tuple[list[RecordedCell], int]:
    """Returns the cells of the tables, and the number of rows that could not be read as runs.

    Raises:
        InputError: a table cannot be read, or no cell has two configurations and a time.
    """
    runs: list[PublishedRun] = []
    reader, left_out = RowReader(), 0
    for path in paths:
        for row in read_rows(path):
            try:
                runs.append(reader.run_of(row))
            except ValueError:
                left_out += 1
    large = cells(merged(runs))
    if not large:
        raise InputError(
            f"nothing to search in {', '.join(map(str, paths))}: no cell has two configurations and a time"
            f" ({left_out} rows cannot be read as runs; python -m platform.validate says why)"
        )
    return large, left_out


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """Options of one call."""

    tables: tuple[Path, ...] = argument(nargs="+", metavar="TABLE.csv", about="measured tables")
    searcher: str = option("guided", choices=NAMES, about="searcher to replay (default: %(default)s)")
    budget: int | None = option(
        None, least=1, metavar="N", about="most trials in a cell (default: all of its configurations)"
    )
    seeds: int = option(1, least=1, metavar="S", about="searches of each cell, seeds 0 to S-1 (default: %(default)s)")
    min_cell: int | None = option(
        None,
        least=1,
        metavar="N",
        about=f"overall: cells of N configurations or more (default: {LARGE}, or all where none is so large)",
    )
    trials: bool = option(False, about="print the trials of the first seed, one on each line")
    json: bool = json_field()


PARSER = CommandParser(ReplayOptions, prog="python -m platform.replay", description=__doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0, or 2 for invalid input."""
    return exit_code_of(lambda: _run(PARSER.read(arguments)))


def _run(options: ReplayOptions) -> int:
    compared, left_out = read_cells(options.tables)
    largest = len(compared[0].choices)
    if options.min_cell is not None and options.min_cell > largest:
        raise InputError(f"no cell has {options.min_cell} configurations: the largest has {largest}")
    logging.getLogger("ray").setLevel(logging.ERROR)
    least = options.min_cell or (LARGE if largest >= LARGE else 2)
    played = [
        [
            play(cell, make(options.searcher, cell, seed), options.budget or len(cell.choices))
            for seed in range(options.seeds)
        ]
        for cell in compared
    ]
    overall = figures(
        [
            search
            for cell, all_of in zip(compared, played, strict=True)
            if len(cell.choices) >= least
            for search in all_of
        ]
    )
    if options.json:
        print_json(_json(options, overall, least, compared, played), indent=2)
        return 0
    _show(Console(highlight=False, markup=False, emoji=False), options.searcher, overall, least, compared, played)
    if options.trials:
        _show_trials(compared, played)
    if left_out:
        print(f"{left_out} rows cannot be read as runs; python -m platform.validate says why")
    return 0


def _json(
    options: ReplayOptions,
    overall: Figures,
    least: int,
    compared: Sequence[RecordedCell],
    played: Sequence[Sequence[Played]],
) -> dict[str, Any]:
    return {
        "searcher": options.searcher,
        "budget": options.budget,
        "seeds": options.seeds,
        "overall": {
            **dataclasses.asdict(overall),
            "min_cell": least,
            "cells": sum(len(cell.choices) >= least for cell in compared),
        },
        "cells": [
            {
                "cell": list(cell.name),
                "recipe": cell.recipe,
                "configurations": len(cell.choices),
                **dataclasses.asdict(figures(all_of)),
            }
            for cell, all_of in zip(compared, played, strict=True)
        ],
    }


def _show(
    console: Console,
    searcher: str,
    overall: Figures,
    least: int,
    compared: Sequence[RecordedCell],
    played: Sequence[Sequence[Played]],
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=f"{searcher}: to within 2 % of the best")
    table.add_column("cell", ratio=1, overflow="fold")
    for name in ("configurations", "trials, median", "mean", "device seconds", "found"):
        table.add_column(name, justify="right")

    def row(label: str, size: str, summary: Figures) -> None:
        table.add_row(
            label,
            size,
            f"{summary.trials_to_2pct_median:g}",
            f"{summary.trials_to_2pct_mean:.1f}",
            f"{summary.gpu_s_to_2pct_median:,.0f}",
            f"{summary.found_share:.0%}",
        )

    for cell, all_of in zip(compared, played, strict=True):
        row(_label(cell, compared), str(len(cell.choices)), figures(all_of))
    row(f"all of at least {least}", "", overall)
    console.print(table, highlight=False)


def _label(cell: RecordedCell, compared: Sequence[RecordedCell]) -> str:
    """Returns a label for the cell, with the recipe's id if another recipe has a cell of the same name."""
    return label_of((*cell.name, cell.recipe), alone=sum(other.name == cell.name for other in compared) == 1)


def _show_trials(compared: Sequence[RecordedCell], played: Sequence[Sequence[Played]]) -> None:
    for cell, (first, *_) in zip(compared, played, strict=True):
        print(_label(cell, compared))
        varied = [axis for axis in cell.choices[0].axes if len({choice.axes[axis] for choice in cell.choices}) > 1]
        for number, trial in enumerate(first.trials, 1):
            share = f"{(trial.tokens_per_s or 0.0) / cell.best_tokens_per_s:.1%} of the best"
            result_text = share if trial.tokens_per_s else trial.outcome.value
            print(f"  {number:3d}  {result_text:18s}  {', '.join(f'{axis} {trial.axes[axis]}' for axis in varied)}")
