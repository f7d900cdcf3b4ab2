"""How good the cost model is against a measured table, beside a constant-MFU predictor fitted to the same rows.

    python -m platform.validate TABLE.csv                   zero-shot: nothing is measured
    python -m platform.validate TABLE.csv --calibrate 3     3 configurations a cell are measured, the rest predicted
    python -m platform.validate TABLE.csv --calibrate 3 --min-cell 6    the same, over cells of 6 configurations or more
    python -m platform.validate TABLE.csv --rows            every configuration, measured beside predicted
    python -m platform.validate TABLE.csv --json            the figures as one JSON object

The table's header is documented in docs/table.md. A cell is (model, gpu, gpus, seq_len, global_batch); identical
configurations of a cell are merged by their median first.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from platform.cost_model.rows import Row, read_rows
from platform.cost_model.scoring import Scored, Scores, cells_of, constant_mfu, merged, score_table, scores
from platform.cost_model.table import Run, interpret
from platform.errors import InputError
from platform.signals import exit_with

JSON_KEYS = (
    "rows_scored",
    "rows_left_out",
    "step_time_ape_median",
    "step_time_ape_mean",
    "memory_ape_median",
    "rank_correlation",
    "regret_median",
    "regret_mean",
    "oom_precision",
    "oom_recall",
    "interval_coverage",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CellReport:
    """The figures of one cell."""

    cell: tuple[str, ...]
    ours: Scores
    baseline: Scores

    @property
    def label(self) -> str:
        """Such as "GPT 181B, 384 x A100-SXM4-80GB, length 2048, batch 2048"."""
        model, gpu, gpus, seq_len, global_batch = self.cell
        return f"{model}, {gpus} x {gpu}, length {seq_len}, batch {global_batch}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a validation found."""

    overall: Scores
    baseline: Scores
    cells: tuple[CellReport, ...]
    left_out: tuple[tuple[str, int], ...]
    """(reason, rows), the commonest first."""
    num_small: int
    """Configurations in cells too small to be asked for."""
    num_rows: int
    num_merged_away: int
    scored: Scored
    unmeasured: Scored | None
    """Rows left out only because nothing was measured: predicted, and shown among the rows."""


def validate(rows: Sequence[Row], *, num_calibrate: int = 0, min_cell: int = 1) -> Report:
    """Scores all rows that can be interpreted, in cells of at least `min_cell` configurations.

    Raises:
        InputError: none can, or no cell is so large.
    """
    runs: list[Run] = []
    reasons: collections.Counter[str] = collections.Counter()
    left_out_cells: collections.Counter[tuple[str, ...]] = collections.Counter()
    unmeasured: list[Run] = []
    for row in rows:
        try:
            runs.append(interpret(row))
        except ValueError as error:
            reasons[str(error)] += 1
            left_out_cells[
                tuple(row.get(name, "") for name in ("model", "gpu", "gpus", "seq_len", "global_batch"))
            ] += 1
            with contextlib.suppress(ValueError):
                unmeasured.append(interpret(row, measured=False))
    if not runs:
        commonest = "; ".join(f"{reason} ({count} rows)" for reason, count in reasons.most_common(3))
        raise InputError(f"none of {len(rows)} rows can be scored: {commonest or 'the table is empty'}")
    every = merged(runs)
    sizes = collections.Counter(run.cell for run in every)
    kept = [run for run in every if sizes[run.cell] >= min_cell]
    if not kept:
        raise InputError(f"no cell has {min_cell} configurations: the largest has {max(sizes.values())}")
    ours = score_table(kept, num_calibrate=num_calibrate)
    baseline = constant_mfu(ours)

    def both(positions: Sequence[int], left_out: int) -> tuple[Scores, Scores]:
        return scores(ours, positions, left_out), _without_memory(scores(baseline, positions, left_out))

    cells = [
        CellReport(cell=cell, ours=mine, baseline=other)
        for cell, positions in cells_of(kept).items()
        for mine, other in (both(positions, left_out_cells[cell]),)
    ]
    cells.sort(key=lambda report: (-report.ours.rows_scored, report.cell))
    overall, overall_baseline = both(range(len(kept)), sum(reasons.values()))
    return Report(
        overall=overall,
        baseline=overall_baseline,
        cells=tuple(cells),
        left_out=tuple(reasons.most_common()),
        num_small=len(every) - len(kept),
        num_rows=len(rows),
        num_merged_away=len(runs) - len(every),
        scored=ours,
        unmeasured=score_table(unmeasured) if unmeasured else None,
    )


def _without_memory(baseline: Scores) -> Scores:
    """A constant share knows neither intervals nor memory: those figures are no figures."""
    return dataclasses.replace(
        baseline,
        memory_ape_median=None,
        interval_coverage=None,
        interval_half_width_median=None,
        oom_precision=None,
        oom_recall=None,
    )


def to_json(report: Report) -> dict[str, Any]:
    """The `--json` object."""

    def figures(values: Scores) -> dict[str, Any]:
        return {key: getattr(values, key) for key in JSON_KEYS}

    return {
        "overall": figures(report.overall),
        "cells": [{"cell": list(cell.cell), **figures(cell.ours)} for cell in report.cells],
    }


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _beside(ours: str, other: str) -> str:
    return ours if other == "-" else f"{ours} ({other})"


_FIGURES = (
    ("step time, median error", lambda s: _percent(s.step_time_ape_median)),
    ("step time, mean error", lambda s: _percent(s.step_time_ape_mean)),
    ("memory, median error", lambda s: _percent(s.memory_ape_median)),
    ("rank correlation", lambda s: _number(s.rank_correlation)),
    ("regret of the predicted best, median", lambda s: _percent(s.regret_median)),
    ("regret of the predicted best, mean", lambda s: _percent(s.regret_mean)),
    ("out of memory: precision", lambda s: _percent(s.oom_precision, 0)),
    ("out of memory: recall", lambda s: _percent(s.oom_recall, 0)),
    ("80 % intervals hold", lambda s: _percent(s.interval_coverage, 0)),
    ("their median half-width", lambda s: _percent(s.interval_half_width_median)),
)


def _shown(scored: Scored, position: int) -> tuple[str, ...]:
    run = scored.runs[position]
    row, values = run.row, run.values
    degrees = " ".join(f"{name}{values[name]:g}" for name in ("tp", "pp", "dp") if values[name] > 1)
    batch = f"{values['micro_batch']:g}x{values['grad_accum']:g}"
    ckpt = "" if row["activation_ckpt"] in ("", "none") else f" {row['activation_ckpt']} ckpt"
    label = f"{row['model']} s{row['seq_len']} {row['gpus']} x {run.cluster.device.name} {row['strategy']} {degrees}"
    measured, memory = scored.measured_s[position], scored.measured_gib[position]
    return (
        f"{label} {batch}{ckpt} {row['precision']}",
        "OOM" if run.out_of_memory else f"{measured:.3g}" if measured == measured else "-",
        f"{scored.predicted_s[position]:.3g}",
        f"{scored.low_s[position]:.3g}-{scored.high_s[position]:.3g}",
        f"{memory:.1f}" if memory == memory else "-",
        f"{scored.predicted_gib[position]:.1f}",
        "fits" if scored.predicted_fits[position] else "OOM",
    )


def show_rows(report: Report, console: Console) -> None:
    """Each configuration: printed beside predicted; those of which nothing was measured at the end."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("configuration", ratio=1, min_width=14, overflow="fold")
    for name in ("step s", "predicted", "80 %", "GiB", "predicted", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    for scored in filter(None, (report.scored, report.unmeasured)):
        for position in range(len(scored.runs)):
            table.add_row(*_shown(scored, position))
    console.print(table, highlight=False)


def show(report: Report, console: Console, *, num_calibrate: int) -> None:
    """Prints the report for a person."""
    overall = report.overall
    how = f"{num_calibrate} configurations a cell measured" if num_calibrate else "zero-shot"
    console.print(
        f"{overall.rows_scored} configurations scored, {how}; {report.num_merged_away} repeated rows merged,"
        f" {overall.rows_left_out} of {report.num_rows} rows left out"
        + (f", {report.num_small} configurations in smaller cells not looked at" if report.num_small else "")
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("cost model", justify="right")
    table.add_column("constant MFU", justify="right")
    for name, text in _FIGURES:
        table.add_row(name, text(overall), text(report.baseline))
    console.print(table)
    if num_calibrate:
        before = _percent(overall.zero_shot_ape_median)
        console.print(f"the same rows before calibrating: step time, median error {before}", highlight=False)
    console.print(
        f"out of memory: {overall.oom_missed} missed, {overall.oom_false_alarms} false alarms", highlight=False
    )
    console.print("\nBy cell (constant MFU in brackets; it knows neither memory nor intervals)", highlight=False)
    cells = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    cells.add_column("cell", ratio=1, min_width=18, overflow="fold")
    beside = ("time error", "rank", "regret")
    for name in ("rows", "time error", "mem.", "rank", "regret", "OOM p/r", "80 %"):
        cells.add_column(name, justify="right", no_wrap=name not in beside)
    for cell in report.cells:
        ours, base = cell.ours, cell.baseline
        oom = "-"
        if ours.oom_precision is not None or ours.oom_recall is not None:
            oom = f"{_number(ours.oom_precision)[:3]}/{_number(ours.oom_recall)[:3]}"
        cells.add_row(
            cell.label,
            str(ours.rows_scored),
            _beside(_percent(ours.step_time_ape_median), _percent(base.step_time_ape_median, 0)),
            _percent(ours.memory_ape_median, 0),
            _beside(_number(ours.rank_correlation), _number(base.rank_correlation)),
            _beside(_percent(ours.regret_median), _percent(base.regret_median, 0)),
            oom,
            _percent(ours.interval_coverage, 0),
        )
    console.print(cells)
    if report.left_out:
        console.print("\nLeft out", highlight=False)
        for reason, count in report.left_out:
            console.print(f"  {count:4d}  {reason}", highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code: 0, or 2 for the user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m platform.validate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", metavar="TABLE.csv", type=pathlib.Path, help="a measured table")
    parser.add_argument(
        "--calibrate", metavar="K", type=int, default=0, help="measure K configurations a cell, as a search would"
    )
    parser.add_argument(
        "--min-cell", metavar="N", type=int, default=1, help="only cells of at least N configurations (default 1)"
    )
    parser.add_argument("--rows", action="store_true", help="print each configuration, measured beside predicted")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of tables")
    options = parser.parse_args(arguments)
    try:
        if options.calibrate < 0:
            raise InputError(f"--calibrate must not be negative, got {options.calibrate}")
        if options.min_cell < 1:
            raise InputError(f"--min-cell must be at least 1, got {options.min_cell}")
        report = validate(read_rows(options.table), num_calibrate=options.calibrate, min_cell=options.min_cell)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(to_json(report), indent=2))
    elif options.rows:
        show_rows(report, Console())
    else:
        show(report, Console(), num_calibrate=options.calibrate)
    return 0


if __name__ == "__main__":
    exit_with(main)
