"""Reports a disturbed machine: layouts whose order is not resolved, and the recorded state of the machine."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from platform.common.text import figure, plural
from platform.study.result.ranking import MOST_RUNS, PointRuns, speed_of
from platform.study.result.result import RecipeResult
from trainers.records.measurement import Measurement, Outcome

_MOST_ABOVE = 2
"""Largest number of points named that exceed the winner in the search alone; the others are counted."""
_MOST_LISTED = 3
"""Largest number of a point's runs that are listed; of more runs, the lowest and the highest are given."""

_MACHINE: tuple[tuple[str, Callable[[Measurement], Sequence[float]], str], ...] = (
    ("other processes took", lambda measurement: measurement.others_busy_pct, " % of the processors"),
    ("other processes held", lambda measurement: measurement.others_gib, " GiB of a GPU"),
    ("steal time", lambda measurement: measurement.steal_pct, " %"),
    ("load average", lambda measurement: () if measurement.load_average is None else (measurement.load_average,), ""),
    ("processors at", lambda measurement: measurement.cpu_clock_mhz, " MHz"),
    ("slowest GPU at", lambda measurement: measurement.sm_clock_mhz, " MHz"),
)
"""Recorded quantities of the machine: name, values in a measurement, unit."""


def unresolved_sentence(result: RecipeResult) -> str:
    """Returns a sentence that names the points among which the fastest is not resolved, and what disturbed them."""
    order, recipe = result.unresolved, result.recipe
    mark = f"miniature of {recipe.miniature_of}, " if recipe.miniature_of else ""
    between = " and ".join(map(_name, order))
    figures = " ".join(f"{_name(point)}: {_figures(point)}." for point in order)
    return (
        f"Not resolved between {between} for {mark}{recipe.label}: the machine was disturbed, so no winner is named."
        f" {figures} {_resolving(result.runs_to_resolve)} --resume runs them again in turn."
    )


def _resolving(runs: int | None) -> str:
    """Returns a sentence on the number of runs that would resolve which unresolved point is the fastest."""
    if runs is None:
        return "At least two paired runs of each are needed."
    number = f"more than {MOST_RUNS}" if runs > MOST_RUNS else f"about {runs}"
    return f"By the spread so far {number} paired runs of each are needed, fewer on a quiet machine."


def disturbance_sentences(result: RecipeResult) -> list[str]:
    """Returns sentences on the runs that support the winner of a disturbed machine; empty if it was not disturbed."""
    points, best = result.points, result.leader
    disturbed = [point for point in points if point.disturbed]
    if not disturbed or best is None:
        return []
    sentences = [f"The machine was disturbed. {' '.join(f'{_name(point)}: {_figures(point)}.' for point in disturbed)}"]
    if order := result.contenders:
        rounds = len(set.intersection(*({run.repeat for run in point.runs} for point in order)))
        sentences.append(f"The order of {len(order)} contenders is that of {plural(rounds, 'run')} beside each other.")
    above = [point for point in points if not point.runs and point.speeds and _is_above(point, best)]
    if above:
        above.sort(key=lambda point: -point.search_tokens_per_s)
        names = ", ".join(f"{_name(point)} with {figure(point.search_tokens_per_s)}" for point in above[:_MOST_ABOVE])
        more = f" and {len(above) - _MOST_ABOVE} more" if len(above) > _MOST_ABOVE else ""
        search = f" (the winner had {figure(best.search_tokens_per_s)} there)" if best.search else ""
        sentences.append(f"Figures of the search alone that are higher{search}: {names}{more}.")
    return sentences


def others_held(measurements: Iterable[Measurement]) -> str:
    """Returns the GPU memory that other processes held, and in how many measurements; "" if they held none."""
    recorded = [measurement for measurement in measurements if measurement.others_gib]
    disturbed = [measurement.most_others_gib for measurement in recorded if measurement.most_others_gib]
    if not disturbed:
        return ""
    return f"up to {figure(max(disturbed))} GiB of a GPU in {len(disturbed)} of {plural(len(recorded), 'measurement')}"


def _is_above(point: PointRuns, best: PointRuns) -> bool:
    return point.search_tokens_per_s > (best.median_tokens_per_s or 0.0)


def unresolved_json(order: Sequence[PointRuns]) -> list[dict[str, Any]] | None:
    """Returns the unresolved points for `--json`; None if there are none."""
    if not order:
        return None
    return [
        {
            "measurement": point.main_run.id,
            "layout": point.main_run.layout.id,
            "label": point.main_run.layout.label,
            "micro_batch": point.main_run.batch.micro_batch,
            "search_tokens_per_s": point.search and point.search.tokens_per_s,
            "tokens_per_s": [run.tokens_per_s for run in point.runs],
            "disturbed": point.disturbed,
        }
        for point in order
    ]


def _name(point: PointRuns) -> str:
    return f"{point.main_run.layout.label}, micro-batch {point.main_run.batch.micro_batch}"


def _figures(point: PointRuns) -> str:
    """Returns the point's figures, and the machine's state in the search and on average in the runs."""
    search, runs = point.search, [run for run in point.runs if run.outcome is Outcome.OK]
    first = f"{figure(search.tokens_per_s)} tokens/s in the search" if search else "no figure of the search"
    if not runs:
        return f"{first}, not run again"
    speeds = sorted(speed_of(run) for run in runs)
    listed = ", ".join(figure(speed_of(run)) for run in runs)
    if len(runs) > _MOST_LISTED:
        listed = f"{figure(speeds[0])} to {figure(speeds[-1])} in {len(runs)} runs"
    changes = [_change(name, values_of, unit, search, runs) for name, values_of, unit in _MACHINE] if search else []
    machine = "; ".join(filter(None, changes))
    return f"{first}, {listed} in fresh processes" + (f" ({machine})" if machine else "")


def _change(
    name: str,
    values_of: Callable[[Measurement], Sequence[float]],
    unit: str,
    search: Measurement,
    runs: Sequence[Measurement],
) -> str:
    """Returns the mean of a machine quantity in the search and in the runs, as text; "" if it was not recorded."""
    before, after = values_of(search), [value for run in runs for value in values_of(run)]
    if not before or not after:
        return ""
    first, later = (f"{round(statistics.fmean(values), 1):,g}" for values in (before, after))
    return f"{name} {first}, then {later}{unit}"
