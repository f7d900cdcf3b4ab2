"""Scores the cost model against measured tables, beside a constant-MFU predictor fitted to the same rows.

    python -m platform.validate TABLE.csv                   zero-shot: nothing is measured
    python -m platform.validate TABLE.csv TABLE.csv         of both together: rows of one cell are merged
    python -m platform.validate TABLE.csv --calibrate 3     measures 3 configurations of each cell, predicts the rest
    python -m platform.validate TABLE.csv --calibrate 3 --min-cell 6    the same, over cells of 6 configurations or more
    python -m platform.validate TABLE.csv --rows            every configuration, measured beside predicted
    python -m platform.validate TABLE.csv --json            the figures as one JSON object
    python -m platform.validate TABLE.csv --engine my_package.my_engine:ENGINE    rows of an engine of your own too

docs/reference/columns.md has the table's columns. A cell is (model, gpu, gpus, seq_len, global_batch); identical
configurations of a cell are merged by their median first.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from platform.common.command import exit_code_of
from platform.common.errors import InputError
from platform.common.json_form import print_json
from platform.common.options import CommandParser, argument, json_field, option
from platform.common.signals import exit_with
from platform.cost_model.engines import import_costs
from platform.validate.rows import read_rows
from platform.validate.validation import to_json, validate
from platform.validate.validation_tables import show, show_rows


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ValidateOptions:
    """Options of one call."""

    tables: tuple[Path, ...] = argument(nargs="+", metavar="TABLE.csv", about="measured tables")
    calibrate: int = option(
        0, metavar="K", about="take K configurations of each cell as measured, as a search would, and score the rest"
    )
    min_cell: int = option(1, least=1, metavar="N", about="score only cells of at least N configurations (default: 1)")
    imported: tuple[str, ...] = option(
        (),
        names=("--engine",),
        repeated=True,
        metavar="MODULE:NAME",
        about="import an engine outside this project and predict its rows by the costs that its rules name; repeat it"
        " for several",
    )
    rows: bool = option(False, about="print measured and predicted figures of each configuration")
    json: bool = json_field()


PARSER = CommandParser(ValidateOptions, prog="python -m platform.validate", description=__doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0, or 2 for invalid input."""
    return exit_code_of(lambda: _run(PARSER.read(arguments)))


def _run(options: ValidateOptions) -> int:
    if options.calibrate < 0:
        raise InputError(f"--calibrate must not be negative, got {options.calibrate}")
    for name in options.imported:
        import_costs(name)
    rows = [row for table in options.tables for row in read_rows(table)]
    report = validate(rows, num_calibrate=options.calibrate, min_cell=options.min_cell)
    if options.json:
        print_json(to_json(report), indent=2)
        return 0
    console = Console(highlight=False, markup=False, emoji=False)
    if options.rows:
        show_rows(report, console)
    else:
        show(report, console, num_calibrate=options.calibrate)
    return 0


if __name__ == "__main__":
    exit_with(main)
