"""Renders a study's table for people: best first, then failures with their reasons, fitted to the terminal's width."""

import dataclasses
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console

from platform.common.text import figure
from platform.report.columns import MeasuredRow, narrow, on_terminal
from platform.report.console import FAILED, STYLES, as_text, console, laid_out
from platform.report.notes import notes, short_reason, skipped_lines
from platform.report.table import Column, Table, percent
from platform.report.untried import not_tried_lines
from platform.study.result.ranking import PointRuns
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.recipe import Recipe

_NARROW = 80
"""Width below which the table of runs has fewer columns."""
_BETWEEN = 2
"""Characters between two columns."""
_REASON = 34
"""Characters reserved for a failure's outcome and reason."""
_MOST_ROWS = 100
"""Largest number of rows of timed points, and of failures; the others are counted."""
_MOST_OMITTED = 4
"""Number of figures that may be left out before the layout is folded over two lines."""

Columns = list[Column[MeasuredRow]]


def render(result: StudyResult, *, width: int, color: bool = False) -> str:
    """Returns a table for each measured recipe, at most `width` columns wide, and the planned layouts of other recipes.

    Days, and cost if a price is given, are those of the study's tokens; a miniature has none.
    """
    screen, stream = console(width=width, color=color)
    for recipe_result in result.by_id.values():
        if recipe_result.measurements:
            _print_recipe(screen, recipe_result, result.header)
        elif lines := not_tried_lines(recipe_result.coverage):
            _print_title(screen, recipe_result.recipe, result.header, result.header.cap_gib)
            for line in (*lines, ""):
                screen.print(line)
    return as_text(stream)


def _print_title(screen: Console, recipe: Recipe, header: StudyHeader, cap_gib: float | None) -> None:
    if original := recipe.miniature_of:
        screen.print(f"MINIATURE of {original}, its speed says nothing of the model itself", style="bold")
    screen.print(f"{recipe.label}, on {header.cluster.label_under(cap_gib)}", style="bold")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRows:
    """The points of a recipe, in the order of the tables."""

    timed: list[MeasuredRow]
    failed: list[MeasuredRow]
    skipped: list[Measurement]


def measured_rows(result: RecipeResult, header: StudyHeader) -> MeasuredRows:
    """Returns the points of a recipe: the winner first, then the fastest; failures by outcome."""
    best = result.winning_point
    rows = [
        MeasuredRow(run=point.representative, header=header, point=point, is_best=point is best)
        for point in result.points
    ]
    unmeasured = [row for row in rows if row.run.tokens_per_s is None]
    return MeasuredRows(
        timed=sorted((row for row in rows if row.run.tokens_per_s is not None), key=_by_speed),
        failed=sorted((row for row in unmeasured if row.run.outcome is not Outcome.SKIPPED), key=_by_outcome),
        skipped=[row.run for row in unmeasured if row.run.outcome is Outcome.SKIPPED],
    )


def confirmed_table(result: RecipeResult, *, is_narrow: bool = False) -> Table[PointRuns] | None:
    """Returns the table of points with runs in fresh processes; None if there are none."""
    confirmed = [point for point in result.points if point.runs]
    confirmed.sort(key=lambda point: -(point.median_tokens_per_s or 0.0))
    # On a narrow terminal the batch shares the layout's column, because another column would cut the figures.
    columns = (_WITH_BATCH if is_narrow else _AND_BATCH) + _RUNS
    return Table(columns=columns, rows=confirmed).filled if confirmed else None


def _print_recipe(screen: Console, result: RecipeResult, header: StudyHeader) -> None:
    recipe, rows = result.recipe, measured_rows(result, header)
    timed, failed, skipped = rows.timed, rows.failed, rows.skipped
    shown, shown_failed = timed[:_MOST_ROWS], failed[:_MOST_ROWS]

    _print_title(screen, recipe, header, result.points[0].representative.cap_gib)
    # Rows with different global batches train differently, so that column always stays.
    fixed = ["global_batch"] if recipe.grad_accum else []
    columns = on_terminal(header, [*shown, *shown_failed], fixed=fixed)
    columns, same, omitted = _fit(screen.width, columns, [*shown, *shown_failed], shown)
    if same:
        screen.print(f"In every row: {', '.join(same)}")
    if shown:
        screen.print(laid_out(Table(columns=columns, rows=shown, style=_style)))
    if more := len(timed) - len(shown):
        screen.print(f"and {more:,} more that ran, see the study's files or --json")
    if failed:
        screen.print()
        screen.print(laid_out(Table(columns=of_failures(columns), rows=shown_failed, style=_style)))
    if more := len(failed) - len(shown_failed):
        screen.print(f"and {more:,} more that failed, see the study's files or --json")
    is_narrow = screen.width < _NARROW
    if confirmed := confirmed_table(result, is_narrow=is_narrow):
        screen.print()
        screen.print("Run again in fresh processes")
        screen.print(laid_out(confirmed, gap=2 if is_narrow else 3))
    screen.print()
    remarks = notes([row.run for row in shown], result.winner, omitted, columns)
    lines = (*not_tried_lines(result.coverage), *skipped_lines(skipped), *remarks, recipe.regularization)
    for line in filter(None, lines):
        screen.print(line)
    screen.print()


def _by_speed(row: MeasuredRow) -> tuple[bool, bool, float]:
    return not row.is_best, row.run.outcome is not Outcome.OK, -(row.run.tokens_per_s or 0.0)


def _by_outcome(row: MeasuredRow) -> tuple[str, str, int]:
    return row.run.outcome.value, row.run.layout.label, row.run.batch.micro_batch


def _style(row: MeasuredRow) -> str:
    return "bold green" if row.is_best else STYLES.get(row.run.outcome, FAILED)


def _fit(
    width: int, columns: Columns, rows: Sequence[MeasuredRow], measured: Sequence[MeasuredRow]
) -> tuple[Columns, list[str], list[str]]:
    """Returns the columns that fit the width, facts stated once for all rows, and the titles left out.

    Columns with a single value leave the table first, then the least informative figures; on a narrow terminal the
    parts of the layout share one column.
    """
    same: list[str] = []
    omitted: list[str] = []
    widths: dict[str, int] = {}
    beside = _REASON if len(rows) > len(measured) else 0

    def fits(some: Columns) -> bool:
        of_point = _width([column for column in some if column.point], measured or rows, widths)
        return max(_width(some, measured, widths), of_point + beside) <= width

    if fits(columns):
        return columns, same, omitted
    for column in [candidate for candidate in columns if candidate.point and (len(rows) > 1 or candidate.drop == 1)]:
        values = {column.text(row) for row in rows}
        if len(values) == 1:
            columns = [other for other in columns if other is not column]
            same.append(f"{column.flat} {values.pop()}")
    for attempt in (columns, narrow(columns)):
        columns, omitted = attempt, []
        for column in sorted((column for column in attempt if column.drop), key=lambda column: column.drop):
            if fits(columns):
                break
            columns = [other for other in columns if other is not column]
            omitted.append(column.flat)
        # Losing half of the figures is worse than folding the layout over two lines.
        if fits(columns) and len(omitted) <= _MOST_OMITTED:
            break
    return columns, same, omitted


def _width(columns: Columns, measured: Sequence[MeasuredRow], widths: dict[str, int]) -> int:
    """Returns the width of a table of these columns, in characters; folding columns have their least width.

    `widths` caches the widths of columns by key.
    """
    for column in columns:
        if column.key not in widths:
            texts = [column.title, *(column.text(row) for row in measured)]
            lines = [line for text in texts for line in text.splitlines()]
            widths[column.key] = column.fold or max(map(cell_len, lines), default=0)
    return sum(widths[column.key] for column in columns) + _BETWEEN * (len(columns) - 1)


def of_failures(columns: Columns) -> Columns:
    """Returns the columns that describe the point, then the outcome and its reason."""
    return [
        *(
            dataclasses.replace(column, fold=12) if column.key in ("layout", "options") else column
            for column in columns
            if column.point
        ),
        Column(title="outcome", value=lambda row: row.ended, left=True),
        Column(title="reason", value=lambda row: short_reason(row.run, row.header.cluster), left=True, fold=20),
    ]


def _half_interval(point: PointRuns) -> float | None:
    """Returns half the interval of the runs' mean as a share of their median; None for fewer than two runs."""
    ends, median = point.interval_tokens_per_s, point.median_tokens_per_s
    return (ends[1] - ends[0]) / (2 * median) if ends and median else None


def _batch(run: Measurement) -> str:
    return f"{run.batch.micro_batch} x {run.batch.grad_accum}"


_WITH_BATCH: list[Column[PointRuns]] = [
    Column(title="layout", left=True, fold=16,
           value=lambda point: f"{point.main_run.layout.label}, {_batch(point.main_run)}"),
]  # fmt: skip
_AND_BATCH: list[Column[PointRuns]] = [
    Column(title="layout", value=lambda point: point.main_run.layout.label, left=True, fold=16),
    Column(title="MBS\nx GAS", value=lambda point: _batch(point.main_run), left=True),
]
_RUNS: list[Column[PointRuns]] = [
    Column(title="search", value=lambda point: point.search and _speed(point.search)),
    Column(title="runs 1, 2, ...: tokens/s", left=True, fold=12,
           value=lambda point: "  ".join(map(_speed, point.runs))),
    Column(title="median", value=lambda point: point.median_tokens_per_s),
    Column(title="95 %\n±%", value=_half_interval, shown=percent),
]  # fmt: skip


def _speed(run: Measurement) -> str:
    if run.tokens_per_s is None or run.outcome is not Outcome.OK:
        return run.outcome.value
    return figure(run.tokens_per_s) + ("~" if run.step_time_derived else "")
