"""Scores the model on what it was not fitted to: a software, a model, a larger cluster, each left out in turn.

    python -m benchmarks.leave_one_table_out TABLE.csv TABLE.csv ...           prints the figures
    python -m benchmarks.leave_one_table_out TABLE.csv TABLE.csv ... --write   and keeps them in docs/accuracy.json

- Software left out: zero-shot, with no fact that was fitted to a run of the table's software, of software that shares
  its code, or to the table itself (`stacks.json`, "tables"). What remains is what other software taught, and what was
  read in code. Corrections by other tables' rows are not applied: they carry over badly from one software to another.
  Where a table has cells of 20 configurations, the guided search and the plain ranking search them in the same way;
  their trials to within 2 % are printed alone.
- The same by kinds of layouts: pipelines over nodes with tensor parallelism, and all others.
- The same times the one factor that fits the table best, which is a bound: it is set with the measured times.
- Of a sweep whose steps stall the same on rows whose twin, which differs in the ZeRO stage alone, is as fast.
- The same with 3 rows of each cell of 10 configurations and more measured.
- Model left out: each model of a table is predicted with what the table's other models measured.
- Projected: rows on more devices than `--up-to` are predicted with what the table's rows on as many and fewer measured.
- Every other row measured: each row of a cell of 10 configurations and more is predicted with what all others of its
  cell measured. No number of measurements makes the regression better than that.

Rates of devices, such as the share of the peak that products sustain, are not refitted: they are of several tables.
"""

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

from platform.common.errors import InputError
from platform.cost_model import stacks
from platform.validate.evaluation import Scored, cells_of, join, merged, part, score_by_others, score_table
from platform.validate.metrics import Scores, agreeing, disturbed, scores
from platform.validate.published_run import PublishedRun, RowReader
from platform.validate.row_software import software_of
from platform.validate.rows import read_rows
from scripts.accuracy import HEADLINE, HEADLINE_CALIBRATED, keep, searched

LEAST = 8
"""Timed runs that a group needs to be scored, or to be learned from."""
LARGE = 10
"""Configurations of a cell whose rows are predicted from each other."""
MEASURED = 3
"""Rows of each cell that are measured where the software is left out."""
Group = Callable[[PublishedRun], object]
LEFT_OUT = HEADLINE
LEFT_OUT_TWINS = "Software left out, rows whose twin of another ZeRO stage is within 10 %"
LEFT_OUT_PIPES = "Software left out, pipelines over nodes with tensor parallelism"
LEFT_OUT_OTHERS = "Software left out, all other layouts"
LEFT_OUT_FACTOR = "Software left out, times the table's best factor (a bound)"


def runs_of(path: Path) -> list[PublishedRun]:
    """Returns every configuration of a table that can be read, merged."""
    runs: list[PublishedRun] = []
    reader = RowReader()
    for row in read_rows(path):
        try:
            runs.append(reader.run_of(row))
        except ValueError:
            continue
    return merged(runs)


@contextlib.contextmanager
def software_left_out(path: Path) -> Generator[None]:
    """Ignores in its context every fact that was fitted to runs of a table's software, or to the table."""
    software = {software_of(run.row) for run in runs_of(path)}
    names = {path.name}.union(*map(stacks.tables_of, software))
    with stacks.without(*sorted(names)):
        yield


def runs_that_agree(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Returns the runs of a table whose steps stall that have a twin of another ZeRO stage as fast; none of others."""
    scored = score_table(runs)
    stalls = any(disturbed(scored, rows) for rows in cells_of(runs).values())
    return [runs[row] for row in agreeing(scored)] if stalls else []


def left_out(path: Path, among: Sequence[PublishedRun] | None = None) -> Scored:
    """Returns the table's zero-shot score without its software, of the rows of `among` alone where it is given."""
    rows = None if among is None else {_row(run) for run in among}
    with software_left_out(path):
        return score_table([run for run in runs_of(path) if rows is None or _row(run) in rows])


def left_out_calibrated(path: Path) -> Scored | None:
    """Returns the score of the table's large cells without its software, with `MEASURED` rows of each measured."""
    with software_left_out(path):
        runs = runs_of(path)
        large = [runs[row] for rows in cells_of(runs).values() if len(rows) >= LARGE for row in rows]
        return score_table(large, num_calibrate=MEASURED) if large else None


def by_kind(scored: Scored) -> Iterator[tuple[str, list[int]]]:
    """Yields the rows of both kinds of layouts, where a table has enough of each."""
    pipes = [row for row, run in enumerate(scored.runs) if _is_pipe_over_nodes(run)]
    others = [row for row in range(len(scored.runs)) if row not in set(pipes)]
    if min(np.isfinite(scored.measured_s[rows]).sum() for rows in (pipes, others)) >= LEAST:
        yield LEFT_OUT_PIPES, pipes
        yield LEFT_OUT_OTHERS, others


def _is_pipe_over_nodes(run: PublishedRun) -> bool:
    return min(int(run.layout["pp"]), int(run.layout["tp"])) > 1 and run.cluster.num_nodes > 1


def times_best_factor(scored: Scored) -> Scored:
    """Returns the score with every prediction times the factor by which their median error is least."""
    timed = np.isfinite(scored.measured_s)
    ratios = (scored.measured_s / scored.predicted_s)[timed]
    factor = min(ratios, key=lambda factor: float(np.median(np.abs(factor / ratios - 1))))
    scaled = ("predicted_s", "low_s", "high_s", "expected_s")
    return dataclasses.replace(scored, **{name: factor * getattr(scored, name) for name in scaled})


def searched_left_out(path: Path) -> dict[str, list[int]]:
    """Returns the trials of `searched` without the facts that were set with the table in view."""
    with software_left_out(path):
        return searched(runs_of(path))


def group_left_out(runs: Sequence[PublishedRun], group: Group) -> Scored | None:
    """Returns the score of each group of a table predicted with the others' measurements; None where there is only one
    group.
    """
    parts: list[Scored] = []
    for value in dict.fromkeys(map(group, runs)):
        judged = [run for run in runs if group(run) == value]
        teaching = _timed([run for run in runs if group(run) != value])
        if len(teaching) >= LEAST:
            parts.append(score_by_others(judged, teaching))
    return join(parts) if parts else None


def row_left_out(runs: Sequence[PublishedRun]) -> Scored | None:
    """Returns the score of each row predicted with all other rows of its cell; None where no cell is large enough."""
    large = [[runs[row] for row in rows] for rows in cells_of(runs).values() if len(rows) >= LARGE]
    parts = [scored for cell in large if (scored := group_left_out(cell, id)) is not None]
    return join(parts) if parts else None


def projected(runs: Sequence[PublishedRun], up_to: int) -> Scored | None:
    """Returns the score of runs on more devices, with the measurements on `up_to` and fewer; None where either is
    missing.
    """
    few = _timed([run for run in runs if run.cluster.num_devices <= up_to])
    many = [run for run in runs if run.cluster.num_devices > up_to]
    return score_by_others(many, few) if len(few) >= LEAST and len(_timed(many)) >= LEAST else None


def _row(run: PublishedRun) -> tuple[tuple[str, str], ...]:
    return tuple(run.row.items())


def _timed(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    return [run for run in runs if run.step_time_s is not None]


def modes(paths: Sequence[Path], up_to: int) -> Iterator[tuple[Path, str, Scored, Scored]]:
    """Yields (table, mode, its score, the zero-shot score with all evidence) for each table in each mode that it
    has.
    """
    tables = {path: runs_of(path) for path in paths}
    for path, runs in tables.items():
        blind, usual = left_out(path), score_table(runs)
        yield path, LEFT_OUT, blind, usual
        yield path, LEFT_OUT_FACTOR, times_best_factor(blind), usual
        for kind, rows in by_kind(blind):
            yield path, kind, part(blind, rows), part(usual, rows)
        if len(of_twins := runs_that_agree(runs)) >= LEAST:
            yield path, LEFT_OUT_TWINS, left_out(path, of_twins), score_table(of_twins)
        if (scored := left_out_calibrated(path)) is not None:
            yield path, HEADLINE_CALIBRATED, scored, score_table(scored.runs)
        if (scored := group_left_out(runs, lambda run: (run.model.num_layers, run.model.hidden_size))) is not None:
            yield path, "Model left out", scored, score_table(scored.runs)
        if (scored := row_left_out(runs)) is not None:
            yield path, "Every other row of a cell measured", scored, score_table(scored.runs)
        if (scored := projected(runs, up_to)) is not None:
            yield path, f"Projected from {up_to} devices and fewer", scored, score_table(scored.runs)


def _line(path: Path, mode: str, scores: Scores, usual: Scores) -> str:
    return (
        f"{path.name}, {mode}: {scores.rows_scored} rows, median error {scores.step_time_ape_median or 0:.1%}"
        f" ({usual.step_time_ape_median or 0:.1%} zero-shot with all evidence),"
        f" {scores.interval_coverage or 0:.0%} of the 80 % intervals"
        f" hold, half-width {scores.interval_half_width_median or 0:.1%}"
    )


def main() -> None:
    """Prints a line for each table and mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--up-to", type=int, default=16, metavar="N", help="devices to project from (default 16)")
    parser.add_argument("--write", action="store_true", help="keep the scores for docs/reference/accuracy.md")
    options = parser.parse_args()
    try:
        for path, mode, *both in modes(options.tables, options.up_to):
            without, usual = (scores(scored, range(len(scored.runs)), 0) for scored in both)
            print(_line(path, mode, without, usual))
            trials_of = searched_left_out(path) if mode == LEFT_OUT else {}
            for searcher, trials in trials_of.items():
                if trials:
                    print(f"  {searcher}: trials to within 2 % {trials}, mean {statistics.fmean(trials):.2f}")
            if options.write:
                names = " ".join(table.name for table in options.tables)
                command = f"python -m benchmarks.leave_one_table_out {names} --up-to {options.up_to}"
                keep(path, mode, command, without, trials_of)
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
