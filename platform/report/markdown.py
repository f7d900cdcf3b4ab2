"""Writes a study's result, or any table, as GitHub Markdown."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from platform.report.accumulations import accumulation_parts
from platform.report.batches import batch_parts
from platform.report.columns import on_terminal
from platform.report.lessons import lessons
from platform.report.notes import notes, skipped_lines
from platform.report.profile import profile_parts
from platform.report.summary import verdicts
from platform.report.table import Table
from platform.report.terminal import confirmed_table, measured_rows, of_failures
from platform.report.untried import not_tried_lines
from platform.study.result.result import RecipeResult, StudyResult

_MARKS = re.compile(r"([\\`*|<~\[\]]|\b_|_\b)")
"""Characters that have a meaning in Markdown; an underscore inside a word has none."""


def escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", " ".join(text.split()))


def table_lines(table: Table[Any]) -> list[str]:
    titles, are_left = [column.flat for column in table.columns], [column.left for column in table.columns]
    return _lines(titles, are_left, table.texts)


def as_markdown(result: StudyResult) -> str:
    """Returns a study's result: the tables of each recipe, then the verdicts, then the caveats as a list."""
    lines = [f"# {escaped(result.header.name)}", ""]
    for recipe_result in result.by_id.values():
        lines += _recipe_lines(recipe_result, result)
    for part in (*batch_parts(result), *accumulation_parts(result), *profile_parts(result)):
        lines += [*map(escaped, part.heads), "", *table_lines(part.table), "", *_items(part.notes)]
    caveats = {caveat.sentence: caveat.name for of_recipe in result.of_study for caveat in of_recipe.caveats}
    sentences = dict.fromkeys([*verdicts(result), *lessons(result)])
    lines += ["## Result", "", *_items(sentence for sentence in sentences if sentence not in caveats)]
    named = [f"- **{escaped(name)}**: {escaped(sentence)}" for sentence, name in caveats.items()]
    lines += ["## Caveats", "", *named] if named else []
    return "\n".join(lines).rstrip("\n") + "\n"


def fastest_lines(result: StudyResult, count: int) -> list[str]:
    """Returns the table of at most `count` fastest points of the first recipe; empty if none was timed."""
    of_recipe = next(iter(result.by_id.values()), None)
    rows = [] if of_recipe is None else measured_rows(of_recipe, result.header).timed[:count]
    return table_lines(Table(columns=on_terminal(result.header, rows, fixed=()), rows=rows)) if rows else []


def _recipe_lines(of_recipe: RecipeResult, result: StudyResult) -> list[str]:
    """Returns the tables of one recipe with their notes."""
    header, rows = result.header, measured_rows(of_recipe, result.header)
    lines = [f"## {escaped(of_recipe.recipe.label)}, on {escaped(header.cluster.label_under(header.cap_gib))}", ""]
    columns = on_terminal(header, [*rows.timed, *rows.failed], fixed=())
    if rows.timed:
        lines += [*table_lines(Table(columns=columns, rows=rows.timed)), ""]
    if rows.failed:
        lines += [*table_lines(Table(columns=of_failures(columns), rows=rows.failed)), ""]
    if confirmed := confirmed_table(of_recipe):
        lines += ["Run again in fresh processes", "", *table_lines(confirmed), ""]
    remarks = notes([row.run for row in rows.timed], of_recipe.winner, [], columns)
    return [
        *lines,
        *_items(
            (
                *not_tried_lines(of_recipe.coverage),
                *skipped_lines(rows.skipped),
                *remarks,
                of_recipe.recipe.regularization,
            )
        ),
    ]


class MarkdownConsole(Console):
    """A rich console that prints sentences as paragraphs and tables as Markdown tables."""

    def print(self, *objects: Any, **_: Any) -> None:
        """Prints each object on lines of its own; a table without titles becomes a list."""
        for printed in objects:
            if isinstance(printed, Grid):
                rows = list(zip(*(map(str, column.cells) for column in printed.columns), strict=True))
                lines = _grid_lines(printed, rows) if rows else []
            else:
                lines = [f"{escaped(line)}\n" for line in str(printed).splitlines() if line.strip()]
            for line in lines:
                super().print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _grid_lines(grid: Grid, rows: Sequence[Sequence[str]]) -> list[str]:
    if not grid.show_header:
        return _items(map(" ".join, rows))
    titles, are_left = [str(column.header) for column in grid.columns], [c.justify == "left" for c in grid.columns]
    return [*_lines(titles, are_left, rows), ""]


def _items(sentences: Iterable[str]) -> list[str]:
    items = [f"- {escaped(sentence)}" for sentence in sentences if sentence]
    return [*items, ""] if items else []


def _lines(titles: Sequence[str], are_left: Sequence[bool], rows: Iterable[Sequence[str]]) -> list[str]:
    rules = [":--" if is_left else "--:" for is_left in are_left]
    cells = [[escaped(cell) for cell in row] for row in (titles, *rows)]
    return ["| " + " | ".join(row) + " |" for row in (cells[0], rules, *cells[1:])]
