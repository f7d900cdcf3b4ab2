"""What is said of a machine that was disturbed: which layouts it left unresolved, and what it did meanwhile."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from platform.common.text import figure, plural
from platform.finals.contenders import contenders, unresolved
from platform.finals.ranking import PointRuns, points
from trainers.measurement import Measurement, Outcome
from trainers.recipe import Recipe

_MOST_ABOVE = 2
"""Points above the winner in the search alone that are named; the rest is counted."""

_MACHINE: tuple[tuple[str, Callable[[Measurement], Sequence[float]], str], ...] = (
    ("other processes", lambda each: each.others_busy_pct, " % of the processors"),
    ("steal time", lambda each: each.steal_pct, " %"),
    ("load average", lambda each: () if each.load_average is None else (each.load_average,), ""),
    ("processors", lambda each: each.cpu_clock_mhz, " MHz"),
    ("slowest GPU", lambda each: each.sm_clock_mhz, " MHz"),
)
"""What was recorded of the machine: its name, its values in a measurement, and their unit."""


def unresolved_sentence(found: Sequence[PointRuns], recipe: Recipe) -> str:
    """Says between which points of the recipe it is not resolved what is the fastest, and what disturbed them."""
    mark = f"miniature of {recipe.model.miniature_of}, " if recipe.model.miniature_of else ""
    between = " and ".join(map(_name, found))
    told = " ".join(f"{_name(each)}: {_figures(each)}." for each in found)
    return (
        f"Not resolved between {between} for {mark}{recipe.label}: the machine was disturbed, so no winner is named."
        f" {told} --resume runs them again in turn."
    )


def disturbance_sentences(group: Sequence[Measurement]) -> list[str]:
    """What a winner of one recipe rests on where the machine was disturbed; nothing where it was not."""
    found = [point for point in points(group) if point.disturbed and point.runs]
    if not found:
        return []
    said = [f"The machine was disturbed: {'; '.join(f'{_name(each)}: {_figures(each)}' for each in found[:3])}."]
    if order := contenders(group):
        rounds = len(set.intersection(*({run.repeat for run in point.runs} for point in order)))
        said.append(f"The order of {len(order)} contenders is that of {plural(rounds, 'run')} beside each other.")
    best = (order or found)[0]
    above = [
        point
        for point in points(group)
        if not point.runs and point.speeds and point.search_tokens_per_s > (best.median_tokens_per_s or 0.0)
    ]
    if above:
        above.sort(key=lambda point: -point.search_tokens_per_s)
        named = ", ".join(f"{_name(each)} with {figure(each.search_tokens_per_s)}" for each in above[:_MOST_ABOVE])
        more = f" and {len(above) - _MOST_ABOVE} more" if len(above) > _MOST_ABOVE else ""
        search = f", where the winner had {figure(best.search_tokens_per_s)}" if best.search else ""
        said.append(f"Above it by a figure of the search alone{search}: {named}{more}.")
    return said


def unresolved_json(group: Sequence[Measurement]) -> list[dict[str, Any]] | None:
    """The points between which it is not resolved what is the fastest, as `--json` has them; null where it is."""
    found = unresolved(group)
    if not found:
        return None
    return [
        {
            "measurement": point.shown.id,
            "layout": point.shown.layout.id,
            "label": point.shown.layout.label,
            "micro_batch": point.shown.batch.micro_batch,
            "search_tokens_per_s": point.search and point.search.tokens_per_s,
            "tokens_per_s": [run.tokens_per_s for run in point.runs],
            "disturbed": point.disturbed,
        }
        for point in found
    ]


def _name(point: PointRuns) -> str:
    return f"{point.shown.layout.label}, micro-batch {point.shown.batch.micro_batch}"


def _figures(point: PointRuns) -> str:
    """The point's figures with what the machine did while they were taken."""
    search, runs = point.search, [run for run in point.runs if run.outcome is Outcome.OK]
    first = f"{figure(search.tokens_per_s)} tokens/s in the search" if search else "no figure of the search"
    then = ", ".join(figure(run.tokens_per_s) for run in runs)
    said = f"{first}, {then} in fresh processes" if runs else f"{first}, not run again"
    machine = "; ".join(filter(None, (_beside(name, of, unit, search, runs) for name, of, unit in _MACHINE)))
    return f"{said} ({machine})" if machine else said


def _beside(
    name: str,
    of: Callable[[Measurement], Sequence[float]],
    unit: str,
    search: Measurement | None,
    runs: Sequence[Measurement],
) -> str:
    """One quantity of the machine in the search and in each run; "" where it was not recorded."""
    known = [of(each) for each in ((search,) if search else ()) + tuple(runs)]
    if not known or not all(known):
        return ""
    return f"{name} {', '.join(figure(round(statistics.fmean(values), 1)) for values in known)}{unit}"
