"""Compares recipes that differ only in their global batch: what a larger accumulation gains in speed.

Each of them is a recipe of its own, with its own loss curve: speed does not choose among them, a person does.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table, box
from rich.text import Text

from platform.common.text import figure, plural
from platform.report.accumulations import OPEN_NOTE, fastest_of, no_winner_reason, share_words
from platform.report.console import STYLES, as_text, console
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_NARROWEST = 24
"""Columns that a folded layout name needs."""
_MOST_ROWS = 12


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """Recipes that differ only in their global batch, of which there are at least two."""

    recipe: Recipe
    """The recipe of the largest batch."""
    result_by_batch: dict[int, RecipeResult]
    """Result by global batch, ascending."""
    rows: tuple[tuple[Layout, dict[int, Measurement]], ...]
    """A layout with its best point at each global batch, else the outcome of its smallest micro-batch; fastest
    layout first.
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """Global batches, ascending."""
        return tuple(self.result_by_batch)

    @property
    def best(self) -> dict[int, Measurement]:
        """Winner by global batch, without batches that have none."""
        return {
            size: recipe_result.winner
            for size, recipe_result in self.result_by_batch.items()
            if recipe_result.winner is not None
        }

    def share(self, size: int) -> str:
        """Returns the winner's tokens/s over those of the fastest batch's winner, in words; "" without a winner."""
        return share_words(self.result_by_batch[size], fastest_of(self.result_by_batch.values()))


def side_by_side(result: StudyResult) -> list[Batches]:
    """Returns every family of recipes that differ only in their global batch; empty where no two do."""
    families: dict[Recipe, list[RecipeResult]] = {}
    for recipe_result in result.measured:
        is_measured = any(point.typical.outcome is not Outcome.SKIPPED for point in recipe_result.points)
        if is_measured and not recipe_result.recipe.grad_accum:
            families.setdefault(dataclasses.replace(recipe_result.recipe, global_batch=1), []).append(recipe_result)
    return [_batches(family) for family in families.values() if len(family) > 1]


def _batches(family: Sequence[RecipeResult]) -> Batches:
    result_by_batch = {
        recipe_result.recipe.global_batch: recipe_result
        for recipe_result in sorted(family, key=lambda recipe_result: recipe_result.recipe.global_batch)
    }
    cells_of = {size: _best_of_each_layout(recipe_result) for size, recipe_result in result_by_batch.items()}
    layouts = {layout.id: layout for cells in cells_of.values() for layout in cells}
    rows = [
        (layout, {size: cells[layout] for size, cells in cells_of.items() if layout in cells})
        for layout in layouts.values()
    ]

    def speed(row: tuple[Layout, dict[int, Measurement]]) -> float:
        return max(
            (measurement.tokens_per_s or 0.0 for measurement in row[1].values() if measurement.outcome is Outcome.OK),
            default=0.0,
        )

    rows.sort(key=speed, reverse=True)
    return Batches(
        recipe=next(reversed(result_by_batch.values())).recipe,
        result_by_batch=result_by_batch,
        rows=tuple(rows),
    )


def _best_of_each_layout(result: RecipeResult) -> dict[Layout, Measurement]:
    """Returns each layout's best point, else the outcome of its smallest micro-batch, in the order of trials."""
    measured = [point for point in result.points if point.typical.outcome is not Outcome.SKIPPED]
    smallest = sorted(measured, key=lambda point: point.typical.batch.micro_batch, reverse=True)
    first = {point.typical.layout: point.representative for point in smallest}
    best = {point.main_run.layout: point.main_run for point in reversed(result.ranking)}
    return {point.typical.layout: (first | best)[point.typical.layout] for point in measured}


def render_batches(result: StudyResult, *, width: int, color: bool = False) -> str:
    """Returns the tables, at most `width` columns wide; "" where there is nothing to compare.

    Where a column for each batch does not fit, each batch has one row, that of its fastest layout.
    """
    families = side_by_side(result)
    if not families:
        return ""
    screen, stream = console(width=width, color=color)
    for family in families:
        screen.print("Tokens/s against global batch", style="bold")
        screen.print(f"{family.recipe.label.replace(f', global batch {family.recipe.global_batch}', '')}")
        wide = _matrix(family)
        fits = screen.measure(wide, options=screen.options.update(width=1000)).maximum - _foldable(family) <= width
        screen.print(wide if fits else _listing(family))
        screen.print()
        lines = ["Cells: tokens/s; seconds of a step, micro-batch x accumulation."] if fits else []
        if fits and (num_left_out := len(family.rows) - _MOST_ROWS) > 0:
            lines.append(f"Slower ones are left out: {plural(num_left_out, 'layout')}.")
        lines.append(
            "* the winner of its batch. A smaller batch takes more steps for the same tokens: another loss curve."
            f" {OPEN_NOTE}"
        )
        for line in lines:
            screen.print(line)
        screen.print()
    return as_text(stream)


def _foldable(batches: Batches) -> int:
    """Returns the number of columns that folding the layouts' names saves."""
    return max(0, max(len(layout.label) for layout, _ in batches.rows[:_MOST_ROWS]) - _NARROWEST)


def _matrix(batches: Batches) -> Table:
    table = _table()
    table.add_column("layout", overflow="fold", min_width=_NARROWEST)
    for size in batches.sizes:
        table.add_column(f"global batch\n{size:,}", justify="right", no_wrap=True)
    for layout, cells in batches.rows[:_MOST_ROWS]:
        texts = [Text(layout.label)]
        for size in batches.sizes:
            cell = cells.get(size)
            mark = " *" if cell is not None and cell is batches.best.get(size) else "  "
            style = "" if cell is None else "bold green" if mark == " *" else STYLES.get(cell.outcome, "red")
            texts.append(Text("" if cell is None else _cell(cell, mark), style=style))
        table.add_row(*texts)
    table.add_section()
    table.add_row("best, of the fastest", *(f"{batches.share(size)}  " for size in batches.sizes))
    return table


def _cell(measurement: Measurement, mark: str) -> str:
    tilde = "~" if measurement.step_time_derived else ""
    point = f"{measurement.batch.micro_batch} x {measurement.batch.grad_accum}"
    if measurement.outcome is not Outcome.OK or measurement.tokens_per_s is None:
        return f"{measurement.outcome}{mark}\n{point}  "
    return f"{figure(measurement.tokens_per_s)}{tilde}{mark}\n{figure(measurement.step_time_s)}{tilde} s, {point}  "


def _listing(batches: Batches) -> Table:
    table = _table()
    table.add_column("global\nbatch", justify="right")
    table.add_column("fastest layout", overflow="fold", min_width=16)
    for title in ("MBS\nx GAS", "step\ns", "tokens\n/s", "of the\nfastest"):
        table.add_column(title, justify="right", no_wrap=True)
    for size in batches.sizes:
        winner = batches.best.get(size)
        if winner is None:
            table.add_row(f"{size:,}", Text(no_winner_reason(batches.result_by_batch[size]), style="red"))
            continue
        tilde = "~" if winner.step_time_derived else ""
        table.add_row(
            f"{size:,}",
            Text(f"{winner.layout.label} *"),
            f"{winner.batch.micro_batch} x {winner.batch.grad_accum}",
            f"{figure(winner.step_time_s)}{tilde}",
            f"{figure(winner.tokens_per_s)}{tilde}",
            batches.share(size),
        )
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def batch_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Returns the same as plain rows, one for each global batch and layout."""
    return [
        {
            "model": cell.recipe.model.name,
            "seq_len": cell.recipe.seq_len,
            "global_batch": size,
            "layout": layout.label,
            "micro_batch": cell.batch.micro_batch,
            "grad_accum": cell.batch.grad_accum,
            "outcome": cell.outcome.value,
            "tokens_per_s": cell.tokens_per_s,
            "step_time_s": cell.step_time_s,
            "winner": cell is batches.best.get(size),
        }
        for batches in side_by_side(result)
        for layout, cells in batches.rows
        for size, cell in sorted(cells.items())
    ]
