"""Compares accumulations that were searched by value: what a longer one gains in speed and what it changes.

With a fixed accumulation the global batch follows from the micro-batch and the data-parallel ranks. So speed and days
stand beside the global batch: a larger one has another loss curve, and a person chooses between the two.
"""

from collections.abc import Iterable
from typing import Any

from rich.table import Table, box
from rich.text import Text

from platform.common.text import count, figure
from platform.report.console import as_text, console
from platform.report.summary import days_of
from platform.study.result.ranking import speed_of
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.measurement import Outcome
from trainers.spec.recipe import Recipe

OPEN_MARK = "?"
OPEN_NOTE = f"{OPEN_MARK} not resolved by runs of both beside each other."
Family = dict[int, RecipeResult]
"""Result by accumulation, ascending."""


def families(result: StudyResult) -> dict[Recipe, Family]:
    """Returns the recipes that differ only in their fixed accumulation, where at least two were tried."""
    by_recipe: dict[Recipe, Family] = {}
    for recipe_result in result.measured:
        is_measured = any(measurement.outcome is not Outcome.SKIPPED for measurement in recipe_result.measurements)
        if recipe_result.recipe.grad_accum and is_measured:
            by_recipe.setdefault(recipe_result.recipe.of_batch(1), {})[recipe_result.recipe.grad_accum] = recipe_result
    return {recipe: dict(sorted(family.items())) for recipe, family in by_recipe.items() if len(family) > 1}


def render_accumulations(result: StudyResult, *, width: int, color: bool = False) -> str:
    """Returns the tables, at most `width` columns wide; "" where no two accumulations were tried."""
    by_recipe = families(result)
    if not by_recipe:
        return ""
    screen, stream = console(width=width, color=color)
    for recipe, family in by_recipe.items():
        screen.print("What accumulation buys, and the global batch it makes", style="bold")
        screen.print(recipe.label.replace(", global batch 1", ""))
        screen.print(_table(family, result.header.tokens))
        screen.print()
        screen.print(
            "Each row is the fastest of its accumulation. A larger global batch takes fewer optimizer steps for"
            f" the same tokens: another loss curve, so speed alone does not choose between rows. {OPEN_NOTE}"
        )
        screen.print()
    return as_text(stream)


def _table(family: Family, tokens: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("accumu-\nlation", justify="right")
    table.add_column("fastest layout", overflow="fold", min_width=16)
    for title in ("MBS", "global\nbatch", "step\ns", "tokens\n/s", "of the\nfastest", f"days for\n{count(tokens)}"):
        table.add_column(title, justify="right", no_wrap=True)
    fastest = fastest_of(family.values())
    for accumulation, of_recipe in family.items():
        winner = of_recipe.winner
        if winner is None or winner.tokens_per_s is None:
            table.add_row(f"{accumulation:,}", Text(no_winner_reason(of_recipe), style="red"))
            continue
        tilde = "~" if winner.step_time_derived else ""
        days = days_of(winner, tokens)
        table.add_row(
            f"{accumulation:,}",
            Text(winner.layout.label),
            str(winner.batch.micro_batch),
            f"{winner.global_batch:,}",
            figure(winner.step_time_s) + tilde,
            figure(winner.tokens_per_s) + tilde,
            share_words(of_recipe, fastest),
            "" if days is None else figure(days) + tilde,
        )
    return table


def fastest_of(family: Iterable[RecipeResult]) -> RecipeResult | None:
    """Returns the recipe whose winner is the fastest; None where none has a winner."""
    won = [result for result in family if result.winner is not None]
    return max(won, key=lambda result: speed_of(result.winner) if result.winner else 0.0, default=None)


def share_words(result: RecipeResult, fastest: RecipeResult | None) -> str:
    """Returns the winner's tokens/s over those of the fastest recipe's winner, marked where that is not resolved by
    runs of both beside each other; "" without a winner.
    """
    best, first = result.winning_point, fastest and fastest.winning_point
    if best is None or first is None or result.winner is None or fastest is None or fastest.winner is None:
        return ""
    share = f"{speed_of(result.winner) / speed_of(fastest.winner):.0%}"
    is_open = best is not first and first.beside(best).resolution == "not resolved"
    return share + OPEN_MARK if is_open else share


def no_winner_reason(of_recipe: RecipeResult) -> str:
    """Returns why a recipe's table has no winner."""
    return "nothing fits" if of_recipe.is_resolved else "not resolved"


def accumulation_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Returns the same as plain rows, one for each accumulation; without a winner the figures are null."""
    return [
        {
            "model": recipe.model.name,
            "seq_len": recipe.seq_len,
            "grad_accum": accumulation,
            "layout": winner and winner.layout.label,
            "micro_batch": winner and winner.batch.micro_batch,
            "global_batch": winner and winner.global_batch,
            "step_time_s": winner and winner.step_time_s,
            "tokens_per_s": winner and winner.tokens_per_s,
            "days": winner and days_of(winner, result.header.tokens),
        }
        for recipe, family in families(result).items()
        for accumulation, winner in ((accumulation, of_recipe.winner) for accumulation, of_recipe in family.items())
    ]
