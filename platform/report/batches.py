"""Compares recipes that differ only in their global batch: the gain in speed of a larger accumulation.

Each global batch has its own loss curve, so speed alone does not choose; a person does.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from platform.common.text import figure, plural
from platform.report.accumulations import OPEN_NOTE, fastest_of, recipe_rows, recipe_table, share_words
from platform.report.console import FAILED, STYLES
from platform.report.table import Column, Table, TablePart
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_NARROWEST = 24
"""Width in characters that a folded layout name needs."""
_MOST_ROWS = 12


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """Several recipes that differ only in their global batch."""

    recipe: Recipe
    """The recipe of the largest batch."""
    result_by_batch: dict[int, RecipeResult]
    """Results by global batch, ascending."""
    rows: tuple[tuple[Layout, dict[int, Measurement]], ...]
    """Each layout's best point (if none may win: its smallest micro-batch) by global batch; fastest layout first."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.result_by_batch)

    @property
    def best(self) -> dict[int, Measurement]:
        """Winners by global batch."""
        return {
            size: recipe_result.winner
            for size, recipe_result in self.result_by_batch.items()
            if recipe_result.winner is not None
        }

    def share(self, size: int) -> str:
        return share_words(self.result_by_batch[size], fastest_of(self.result_by_batch.values()))


def side_by_side(result: StudyResult) -> list[Batches]:
    """Returns the families of at least two measured recipes that differ only in their global batch."""
    families: dict[Recipe, list[RecipeResult]] = {}
    for recipe_result in result.measured:
        is_measured = any(point.representative.outcome is not Outcome.SKIPPED for point in recipe_result.points)
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
    """Returns each layout's best point, or its smallest micro-batch if none may win, in the order of trials."""
    measured = [point for point in result.points if point.representative.outcome is not Outcome.SKIPPED]
    smallest = sorted(measured, key=lambda point: point.representative.batch.micro_batch, reverse=True)
    first = {point.representative.layout: point.representative for point in smallest}
    best = first | {point.main_run.layout: point.main_run for point in reversed(result.ranking)}
    return {point.representative.layout: best[point.representative.layout] for point in measured}


def batch_parts(result: StudyResult) -> Iterator[TablePart]:
    """Yields a table for each family, with a column for each global batch.

    If the terminal is too narrow, the table has a row for each global batch with its fastest layout.
    """
    for family in side_by_side(result):
        curve = f"A smaller batch takes more steps for the same tokens: another loss curve. {OPEN_NOTE}"
        notes = ["Cells: tokens/s; seconds of a step, micro-batch x accumulation."]
        if (num_left_out := len(family.rows) - _MOST_ROWS) > 0:
            notes.append(f"Slower ones are left out: {plural(num_left_out, 'layout')}.")
        label = family.recipe.label.replace(f", global batch {family.recipe.global_batch}", "")
        rows = recipe_rows(family.result_by_batch, result.header.tokens)
        yield TablePart(
            heads=("Tokens/s against global batch", label),
            table=_matrix(family),
            notes=(*notes, f"* the winner of its batch. {curve}"),
            narrow=recipe_table(rows, "global\nbatch", _LISTED),
            narrow_notes=(curve,),
        )


_LISTED = ("number", "fastest", "batch", "step_time_s", "tokens_per_s", "share")
_MatrixRow = tuple[Layout | None, dict[int, Measurement]]
"""A layout with its points by global batch; the layout is None in the last row, which holds the winners."""


def _matrix(batches: Batches) -> Table[_MatrixRow]:
    name: Column[_MatrixRow] = Column(
        title="layout",
        value=lambda row: row[0].label if row[0] else "best, of the fastest",
        left=True,
        fold=_NARROWEST,
    )
    columns = [name, *(_of_size(batches, size) for size in batches.sizes)]
    return Table(columns=columns, rows=[*batches.rows[:_MOST_ROWS], (None, batches.best)])


def _of_size(batches: Batches, size: int) -> Column[_MatrixRow]:
    winner, share = batches.best.get(size), batches.share(size)

    def text(row: _MatrixRow) -> str | None:
        cell = row[1].get(size)
        if row[0] is None:
            return f"{share}  " if share else None
        return cell and _cell(cell, " *" if cell is winner else "  ")

    def style(row: _MatrixRow) -> str:
        cell = row[1].get(size)
        if row[0] is None or cell is None:
            return ""
        return "bold green" if cell is winner else STYLES.get(cell.outcome, FAILED)

    return Column(title=f"global batch\n{size:,}", value=text, style=style)


def _cell(measurement: Measurement, mark: str) -> str:
    tilde = "~" if measurement.step_time_derived else ""
    point = f"{measurement.batch.micro_batch} x {measurement.batch.grad_accum}"
    if measurement.outcome is not Outcome.OK or measurement.tokens_per_s is None:
        return f"{measurement.outcome}{mark}\n{point}  "
    return f"{figure(measurement.tokens_per_s)}{tilde}{mark}\n{figure(measurement.step_time_s)}{tilde} s, {point}  "


def batch_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Returns the same as plain rows, one for each global batch and layout."""
    return [
        {
            "model": cell.recipe.name,
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
