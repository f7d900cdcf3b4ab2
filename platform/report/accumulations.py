"""Compares recipes that differ only in their fixed accumulation: the gain in speed and the change of global batch.

With a fixed accumulation the global batch follows from the micro-batch and the data-parallel ranks. Speed and days are
therefore shown beside the global batch: a larger one gives another loss curve, so a person must choose.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from platform.common.text import count
from platform.report.console import FAILED
from platform.report.summary import days_of
from platform.report.table import Column, Table, TablePart, records
from platform.study.result.ranking import speed_of
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.recipe import Recipe

OPEN_MARK = "?"
OPEN_NOTE = f"{OPEN_MARK} not resolved by paired runs."
Family = dict[int, RecipeResult]
"""Results by accumulation, ascending."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecipeRow:
    """One of several recipes that differ in one number, with its winner."""

    number: int
    result: RecipeResult
    fastest: RecipeResult | None
    """The recipe with the fastest winner; None if no recipe has one."""
    tokens: float

    @property
    def winner_or_reason(self) -> str:
        winner, is_resolved = self.result.winner, self.result.is_resolved
        return winner.layout.label if winner else "nothing fits in memory" if is_resolved else "not resolved"


def recipe_rows(results: Mapping[int, RecipeResult], tokens: float) -> list[RecipeRow]:
    """Returns a row for each result; `results` is keyed by the number in which the recipes differ."""
    fastest = fastest_of(results.values())
    return [
        RecipeRow(number=number, result=result, fastest=fastest, tokens=tokens) for number, result in results.items()
    ]


def _winner(read: Callable[[Measurement], Any]) -> Callable[[RecipeRow], Any]:
    """Returns the function that reads a cell from a row's winner, None without a winner."""
    return lambda row: row.result.winner and read(row.result.winner)


def fastest_of(results: Iterable[RecipeResult]) -> RecipeResult | None:
    won = [result for result in results if result.winner is not None]
    return max(won, key=lambda result: speed_of(result.winner) if result.winner else 0.0, default=None)


def share_words(result: RecipeResult, fastest: RecipeResult | None) -> str:
    """Returns the winner's tokens/s as a share of the fastest recipe's winner's; "" without a winner.

    The share ends with `OPEN_MARK` if paired runs do not resolve the difference.
    """
    best, first = result.winning_point, fastest and fastest.winning_point
    if best is None or first is None or result.winner is None or fastest is None or fastest.winner is None:
        return ""
    share = f"{speed_of(result.winner) / speed_of(fastest.winner):.0%}"
    is_open = best is not first and first.beside(best).resolution == "not resolved"
    return share + OPEN_MARK if is_open else share


def _days(row: RecipeRow) -> float | None:
    return row.result.winner and days_of(row.result.winner, row.tokens)


def _derived(row: RecipeRow) -> bool:
    return row.result.winner is not None and row.result.winner.step_time_derived


_DECLARED: tuple[Column[RecipeRow], ...] = (
    Column(key="model", value=lambda row: row.result.recipe.name),
    Column(key="seq_len", value=lambda row: row.result.recipe.seq_len),
    Column(key="number", title="{number}", value=lambda row: row.number, shown="{:,}".format),
    Column(key="grad_accum", value=lambda row: row.number),
    Column(key="fastest", title="fastest layout", value=lambda row: row.winner_or_reason, left=True, fold=16,
           style=lambda row: "" if row.result.winner else FAILED),
    Column(key="layout", value=_winner(lambda best: best.layout.label)),
    Column(key="micro_batch", title="MBS", value=_winner(lambda best: best.batch.micro_batch)),
    Column(key="batch", title="MBS\nx GAS",
           value=_winner(lambda best: f"{best.batch.micro_batch} x {best.batch.grad_accum}")),
    Column(key="global_batch", title="global\nbatch", value=_winner(lambda best: best.global_batch),
           shown="{:,}".format),
    Column(key="step_time_s", title="step\ns", value=_winner(lambda best: best.step_time_s), derived=_derived),
    Column(key="tokens_per_s", title="tokens\n/s", value=_winner(lambda best: best.tokens_per_s), derived=_derived),
    Column(key="share", title="of the\nfastest", value=lambda row: share_words(row.result, row.fastest) or None),
    Column(key="days", title="days for\n{tokens}", value=_days, derived=_derived),
)  # fmt: skip
_BY_KEY = {column.key: column for column in _DECLARED}
_SHOWN = ("number", "fastest", "micro_batch", "global_batch", "step_time_s", "tokens_per_s", "share", "days")
_RECORDED = (
    *("model", "seq_len", "grad_accum", "layout", "micro_batch", "global_batch", "step_time_s", "tokens_per_s", "days"),
)


def recipe_table(rows: list[RecipeRow], number: str, keys: tuple[str, ...]) -> Table[RecipeRow]:
    """Returns the table with the columns of `keys`; `number` is the title of the number in which the rows differ."""
    words = {"number": number, "tokens": count(rows[0].tokens)}
    columns = [dataclasses.replace(_BY_KEY[key], title=_BY_KEY[key].title.format(**words)) for key in keys]
    return Table(columns=columns, rows=rows)


def families(result: StudyResult) -> dict[Recipe, Family]:
    """Returns families of recipes that differ only in their fixed accumulation, at least two of which were tried."""
    by_recipe: dict[Recipe, Family] = {}
    for recipe_result in result.measured:
        is_measured = any(measurement.outcome is not Outcome.SKIPPED for measurement in recipe_result.measurements)
        if recipe_result.recipe.grad_accum and is_measured:
            by_recipe.setdefault(recipe_result.recipe.of_batch(1), {})[recipe_result.recipe.grad_accum] = recipe_result
    return {recipe: dict(sorted(family.items())) for recipe, family in by_recipe.items() if len(family) > 1}


def accumulation_parts(result: StudyResult) -> Iterator[TablePart]:
    """Yields a table for each family of accumulations."""
    for recipe, family in families(result).items():
        yield TablePart(
            heads=(
                "What accumulation buys, and the global batch it makes",
                recipe.label.replace(", global batch 1", ""),
            ),
            table=recipe_table(recipe_rows(family, result.header.tokens), "accumulation", _SHOWN),
            notes=(
                "Each row is the fastest of its accumulation. A larger global batch takes fewer optimizer steps for"
                f" the same tokens: another loss curve, so speed alone does not choose between rows. {OPEN_NOTE}",
            ),
        )


def accumulation_rows(result: StudyResult) -> list[dict[str, Any]]:
    columns = [_BY_KEY[key] for key in _RECORDED]
    of_families = (recipe_rows(family, result.header.tokens) for family in families(result).values())
    return [record for rows in of_families for record in records(columns, rows)]
