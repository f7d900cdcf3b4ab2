"""What a longer accumulation buys, and what it changes: the winner of each accumulation that was searched by value.

With a fixed accumulation the global batch follows from the micro-batch and the data-parallel ranks. So speed and days
stand beside the global batch: a larger one has another loss curve, and a person chooses between the two.
"""

from collections.abc import Sequence
from typing import Any

from rich.table import Table, box
from rich.text import Text

from platform.common.text import count, figure
from platform.finals.ranking import winner
from platform.reports.summary import days_of
from platform.reports.terminal import as_text, console
from trainers.values.measurement import Measurement, Outcome
from trainers.values.recipe import Recipe

Family = dict[int, Measurement | None]
"""Accumulation -> its winner, None where nothing won; ascending."""


def families(measurements: Sequence[Measurement]) -> dict[Recipe, Family]:
    """The winners of recipes that differ in their fixed accumulation alone, of which there are at least two."""
    by_recipe: dict[Recipe, dict[int, list[Measurement]]] = {}
    for each in measurements:
        if each.recipe.grad_accum and each.outcome is not Outcome.SKIPPED:
            family = by_recipe.setdefault(each.recipe.of_batch(1), {})
            family.setdefault(each.recipe.grad_accum, []).append(each)
    return {
        recipe: {accumulation: winner(family[accumulation]) for accumulation in sorted(family)}
        for recipe, family in by_recipe.items()
        if len(family) > 1
    }


def render_accumulations(measurements: Sequence[Measurement], *, tokens: float, width: int, color: bool = False) -> str:
    """The tables, at most `width` columns wide; "" where no two accumulations were tried. Days are for `tokens`."""
    by_recipe = families(measurements)
    if not by_recipe:
        return ""
    screen, stream = console(width=width, color=color)
    for recipe, family in by_recipe.items():
        screen.print("What accumulation buys, and the global batch it makes", style="bold")
        screen.print(recipe.label.replace(", global batch 1", ""))
        screen.print(_table(family, tokens))
        screen.print()
        screen.print(
            "Each row is the fastest of its accumulation. A larger global batch takes fewer optimizer steps for"
            " the same tokens: another loss curve, so speed alone does not choose between rows."
        )
        screen.print()
    return as_text(stream)


def _table(family: Family, tokens: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("accumu-\nlation", justify="right")
    table.add_column("fastest layout", overflow="fold", min_width=16)
    for title in ("MBS", "global\nbatch", "step\ns", "tokens\n/s", "of the\nfastest", f"days for\n{count(tokens)}"):
        table.add_column(title, justify="right", no_wrap=True)
    fastest = max((each.tokens_per_s or 0.0 for each in family.values() if each), default=0.0)
    for accumulation, each in family.items():
        if each is None or each.tokens_per_s is None:
            table.add_row(f"{accumulation:,}", Text("nothing fits", style="red"))
            continue
        tilde = "~" if each.step_time_derived else ""
        days = days_of(each, tokens)
        table.add_row(
            f"{accumulation:,}",
            Text(each.layout.label),
            str(each.batch.micro_batch),
            f"{each.global_batch:,}",
            figure(each.step_time_s) + tilde,
            figure(each.tokens_per_s) + tilde,
            f"{each.tokens_per_s / fastest:.0%}",
            "" if days is None else figure(days) + tilde,
        )
    return table


def accumulation_rows(measurements: Sequence[Measurement], tokens: float) -> list[dict[str, Any]]:
    """The same for machines: a row for each accumulation; one without a winner has null figures."""
    return [
        {
            "model": recipe.model.name,
            "seq_len": recipe.seq_len,
            "grad_accum": accumulation,
            "layout": each and each.layout.label,
            "micro_batch": each and each.batch.micro_batch,
            "global_batch": each and each.global_batch,
            "step_time_s": each and each.step_time_s,
            "tokens_per_s": each and each.tokens_per_s,
            "days": each and days_of(each, tokens),
        }
        for recipe, family in families(measurements).items()
        for accumulation, each in family.items()
    ]
