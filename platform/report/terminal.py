"""Renders the table for people: best first, then failures with their reasons, fitted to the terminal's width."""

import dataclasses
import itertools
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table, box
from rich.text import Text

from platform.common import text
from platform.report.columns import GLOBAL_BATCH, Column, columns_of, flat, narrow, outcome
from platform.report.console import STYLES, as_text, console
from platform.report.notes import notes, short_reason, skipped_lines
from platform.report.untried import not_tried_lines
from platform.study.result.ranking import PointRuns
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster
from trainers.spec.recipe import Recipe

_NARROW = 80
"""Width below which the table of runs has fewer columns."""
_LAYOUT_WIDTH = 24
"""Least width of the layouts, which fold."""
_BETWEEN = 2
"""Characters between two columns."""
_STAR = " *"
"""Mark beside the winner."""
_MOST_ROWS = 100
"""Number of rows of the best and of the failures each; the rest is counted."""


def render(result: StudyResult, *, width: int, color: bool = False) -> str:
    """Returns one table for each recipe that was measured, at most `width` columns wide, and the planned layouts of
    each that was not. Days, and cost where a price is given, are those of the study's tokens, except for a miniature.
    """
    screen, stream = console(width=width, color=color)
    header = result.header
    for recipe_result in result.by_id.values():
        if not recipe_result.measurements:
            _render_plan(screen, recipe_result, header)
            continue
        runs = {point.typical.id: point for point in recipe_result.points if point.runs}
        tokens = None if recipe_result.measurements[0].miniature else header.tokens
        pipelines = any(point.typical.memory_stages for point in recipe_result.points)
        columns = columns_of(header.cluster, tokens, header.price_per_gpu_h, runs, pipelines=pipelines)
        if recipe_result.recipe.grad_accum:  # its rows differ in what they train: the column stays at any width
            columns = [
                dataclasses.replace(column, drop=0) if column.title == GLOBAL_BATCH else column for column in columns
            ]
        _render_recipe(screen, recipe_result, header.cluster, columns)
    return as_text(stream)


def _render_plan(console: Console, result: RecipeResult, header: StudyHeader) -> None:
    """Prints the layouts of a recipe without measurements; nothing where the journal does not state what was
    planned.
    """
    if not (lines := not_tried_lines(result.coverage)):
        return
    _print_title(console, result.recipe, header.cluster, header.cap_gib)
    for line in (*lines, ""):
        console.print(line)


def _print_title(console: Console, recipe: Recipe, cluster: Cluster, cap_gib: float | None) -> None:
    if original := recipe.model.miniature_of:
        console.print(f"MINIATURE of {original}, its speed says nothing of the model itself", style="bold")
    console.print(f"{recipe.label}, on {cluster.label_under(cap_gib)}", style="bold")


def _render_recipe(console: Console, result: RecipeResult, cluster: Cluster, columns: list[Column]) -> None:
    best = result.winning_point and result.winning_point.typical
    group = [point.typical for point in result.points]
    timed = [measurement for measurement in group if measurement.tokens_per_s is not None]
    failed = [
        measurement
        for measurement in group
        if measurement.tokens_per_s is None and measurement.outcome is not Outcome.SKIPPED
    ]
    skipped = [
        measurement
        for measurement in group
        if measurement.outcome is Outcome.SKIPPED and measurement.tokens_per_s is None
    ]
    timed.sort(
        key=lambda measurement: (
            measurement is not best,
            measurement.outcome is not Outcome.OK,
            -(measurement.tokens_per_s or 0.0),
        )
    )
    failed.sort(
        key=lambda measurement: (measurement.outcome.value, measurement.layout.label, measurement.batch.micro_batch)
    )
    slower, more_failed = len(timed[_MOST_ROWS:]), len(failed[_MOST_ROWS:])
    timed, failed = timed[:_MOST_ROWS], failed[:_MOST_ROWS]

    recipe = result.recipe
    _print_title(console, recipe, cluster, group[0].cap_gib)
    columns, same, omitted = _fit(console, columns, [*timed, *failed], timed, best)
    if same:
        console.print(f"In every row: {', '.join(same)}")
    if timed:
        console.print(_table(columns, timed, best))
    if slower:
        console.print(f"and {slower:,} more that ran, see the study's files or --json")
    if failed:
        console.print()
        console.print(_failures(columns, failed, cluster))
    if more_failed:
        console.print(f"and {more_failed:,} more that failed, see the study's files or --json")
    if confirmed := [point for point in result.points if point.runs]:
        console.print()
        console.print("Run again in fresh processes")
        confirmed.sort(key=lambda point: -(point.median_tokens_per_s or 0.0))
        console.print(_runs(confirmed, narrow=console.width < _NARROW))
    console.print()
    if recipe.grad_accum and len({measurement.global_batch for measurement in timed}) > 1:
        console.print("Rows of different global batch are different recipes: speed alone does not choose between them.")
    lines = [*not_tried_lines(result.coverage), *skipped_lines(skipped)]
    titles = [flat(column.title) for column in columns]
    for line in (*lines, *notes(timed, best, omitted, titles), recipe.regularization):
        console.print(line)
    console.print()


def _fit(
    console: Console,
    columns: list[Column],
    rows: Sequence[Measurement],
    measured: Sequence[Measurement],
    best: Measurement | None,
) -> tuple[list[Column], list[str], list[str]]:
    """Returns the columns that fit the width, what is stated once for all rows instead, and the titles left out.

    Columns with a single value leave the table first, then the least telling figures; on a narrow terminal the parts of
    the layout share one column.
    """
    same: list[str] = []
    omitted: list[str] = []
    width_by_column: dict[Column, int] = {}
    if _width(columns, measured, best, width_by_column) <= console.width:
        return columns, same, omitted
    for column in [candidate for candidate in columns if candidate.point and (len(rows) > 1 or candidate.drop == 1)]:
        values = {column.cell(row) for row in rows}
        if len(values) == 1:
            columns = [other for other in columns if other is not column]
            same.append(f"{flat(column.title)} {values.pop()}")
    for attempt in (columns, narrow(columns)):
        columns, omitted = attempt, []
        for column in sorted(
            (candidate for candidate in attempt if candidate.drop), key=lambda candidate: candidate.drop
        ):
            if _width(columns, measured, best, width_by_column) <= console.width:
                break
            columns = [other for other in columns if other is not column]
            omitted.append(flat(column.title))
        # Half of the figures gone is worse than a layout over two lines.
        if _width(columns, measured, best, width_by_column) <= console.width and len(omitted) <= 4:
            break
    return columns, same, omitted


def _width(
    columns: Sequence[Column],
    measured: Sequence[Measurement],
    best: Measurement | None,
    width_by_column: dict[Column, int],
) -> int:
    """Returns the greatest width of a table of these columns, in characters; a layout's label folds.

    `width_by_column` holds the widths of columns measured before.
    """
    for column in columns:
        if column not in width_by_column:
            lines = itertools.chain(column.title.splitlines(), *(column.cell(row).splitlines() for row in measured))
            width_by_column[column] = max(map(cell_len, lines), default=0)
    widths = [_LAYOUT_WIDTH if column.title == "layout" else width_by_column[column] for column in columns]
    if best is not None:
        widths[-1] = max(widths[-1], cell_len(columns[-1].cell(best)) + len(_STAR))
    return sum(widths) + _BETWEEN * (len(columns) - 1)


def _table(columns: Sequence[Column], rows: Sequence[Measurement], best: Measurement | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        fold = column.title == "layout"
        table.add_column(
            column.title,
            justify="left" if column.left else "right",
            vertical="top",
            no_wrap=not fold,
            min_width=_LAYOUT_WIDTH if fold else None,
            overflow="fold" if fold else "ellipsis",
        )
    for row in rows:
        style = "bold green" if row is best else STYLES.get(row.outcome, "red")
        cells = [column.cell(row) for column in columns]
        if row is best:
            cells[-1] += _STAR
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _failures(columns: Sequence[Column], rows: Sequence[Measurement], cluster: Cluster) -> Table:
    """Returns the failures as a table: the point's columns, then the reason in the width that figures leave."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    point = [column for column in columns if column.point]
    for column in point:
        fold = column.title in ("layout", "options")
        table.add_column(
            column.title,
            justify="left" if column.left else "right",
            no_wrap=not fold,
            min_width=12 if fold else None,
            overflow="fold" if fold else "ellipsis",
        )
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason", min_width=20, overflow="fold")
    for row in rows:
        cells = [*(column.cell(row) for column in point), outcome(row), short_reason(row, cluster)]
        table.add_row(*(Text(cell) for cell in cells), style=STYLES.get(row.outcome, "red"))
    return table


def _runs(confirmed: Sequence[PointRuns], *, narrow: bool) -> Table:
    """Returns the tokens/s of every run of the points that have several, the search's own first.

    On a narrow terminal the micro-batch stands with the layout: a column too many would have its figures cut.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), show_edge=False)
    table.add_column("layout", overflow="fold", min_width=16)
    if not narrow:
        table.add_column("MBS\nx GAS", no_wrap=True)
    table.add_column("search", justify="right", no_wrap=True)
    table.add_column("runs 1, 2, ...: tokens/s", overflow="fold", min_width=12)
    table.add_column("median", justify="right", no_wrap=True)
    several = any(point.interval_tokens_per_s for point in confirmed)
    if several:
        table.add_column("95 %\n±%", justify="right", no_wrap=True)
    for point in confirmed:
        main_run, median = point.main_run, point.median_tokens_per_s
        batch = f"{main_run.batch.micro_batch} x {main_run.batch.grad_accum}"
        low, high = point.interval_tokens_per_s or (0.0, 0.0)
        table.add_row(
            *([Text(f"{main_run.layout.label}, {batch}")] if narrow else [Text(main_run.layout.label), batch]),
            "" if point.search is None else _speed(point.search),
            "  ".join(map(_speed, point.runs)),
            text.figure(median),
            *([f"{100 * (high - low) / (2 * median):.1f}" if high and median else ""] if several else []),
        )
    return table


def _speed(run: Measurement) -> str:
    if run.tokens_per_s is None or run.outcome is not Outcome.OK:
        return run.outcome.value
    return text.figure(run.tokens_per_s) + ("~" if run.step_time_derived else "")
