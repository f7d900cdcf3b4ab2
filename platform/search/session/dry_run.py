"""Prints for `--dry-run` what a search would run and skip, with the reasons, and its largest cost."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from platform.common.json_form import print_json
from platform.common.output import wrapped
from platform.common.text import duration, plural
from platform.report.notes import skipped_lines
from platform.search.confirmation.confirmation import ConfirmationPlan
from platform.search.loop.budget import Budget, Spending
from platform.search.loop.time_plan import TimePlan
from platform.search.setup.forecast import forecast_of
from platform.search.setup.planning import Candidate, num_rungs
from platform.search.setup.study_setup import StudySetup
from platform.study.history import History
from trainers.spec.cluster import Cluster
from trainers.spec.float8 import float8_sentence
from trainers.spec.layout import Layout

_MOST_LISTED = 12
"""Number of layouts listed for people, so that the answer fits a screen; the others are counted."""


class WouldRunForm(TypedDict):
    """A layout that would be measured."""

    recipe: str
    """The recipe on one line."""
    layout: Layout
    """The layout."""
    micro_batches: list[int]
    """The layout's micro-batches."""


class WouldSkipForm(TypedDict):
    """A batch point that would be skipped."""

    recipe: str
    """The recipe on one line."""
    layout: Layout
    """The layout."""
    micro_batch: int
    """Sequences per device and micro-step."""
    reason: str
    """The reason why the point cannot run or does not fit."""


class DryRunForm(TypedDict):
    """The plan of a search; with several numbers of devices, one object a line for each."""

    space: str
    """Name of the space."""
    cluster: Cluster
    """The devices."""
    recipes: list[str]
    """The recipes, one line each."""
    would_run: list[WouldRunForm]
    """Layouts that would be measured."""
    skipped: list[WouldSkipForm]
    """Batch points that would be skipped."""
    final_runs_at_most: int
    """Largest number of runs after the search."""
    estimated_s_at_most: float
    """Estimated seconds at most."""
    estimated_device_s_at_most: float
    """Estimated device seconds at most."""
    budget_s: float | None
    """Seconds after which a budget ends the search; null without one."""


def show_dry_run(setup: StudySetup, budget: Budget, history: History, *, as_object: bool) -> None:
    """Prints what a search of `setup` would still run, as lines or one JSON object (`as_object`)."""
    missing = ((candidate, history.missing(candidate)) for candidate in setup.plan.candidates)
    remaining = [dataclasses.replace(candidate, micro_batches=rungs) for candidate, rungs in missing if rungs]
    seconds = setup.plan.expected_s(remaining, setup.cluster, setup.timing, setup.rules)
    if as_object:
        print_json(_as_object(setup, budget, remaining, seconds))
        return
    lines = [*_lines(setup, remaining, seconds)]
    for option, limit_s in _limits(setup, budget).items():
        if limit_s is not None and limit_s < seconds:
            whose = budget.time_words if budget.of_space else f"({option})"
            lines.append(f"The budget ends it after {duration(limit_s)} {whose}.")
    forecast = forecast_of(setup.plan, setup.timing)
    confirmation = ConfirmationPlan(setup.plan.candidates, setup.rules, forecast.winners).at(history)
    spending = Spending(budget, num_devices=setup.cluster.num_devices)
    time_plan = TimePlan(spending, confirmation, setup.timing, forecast, begins=True, for_new_winner=False)
    for line in filter(None, (*lines, time_plan.sentence)):
        print(wrapped(line))


def _lines(setup: StudySetup, remaining: Sequence[Candidate], seconds: float) -> Iterator[str]:
    plan = setup.plan
    yield f"Space {setup.space.name} on {setup.cluster.label_under(setup.cap_gib)}: {setup.space.recipe.label}"
    for recipe in setup.space.recipes:
        if layers := float8_sentence(recipe):
            yield f"  {layers}"
    for candidate in remaining[:_MOST_LISTED]:
        sizes = "the largest that fits of micro-batches" if candidate.finds_largest else "micro-batch"
        yield f"  would run  {candidate.layout.label}, {sizes} {', '.join(map(str, candidate.micro_batches))}"
    if more := len(remaining[_MOST_LISTED:]):
        yield f"  and {plural(more, 'layout')} more, see --json"
    yield from skipped_lines(plan.skipped)
    if not plan.candidates:
        yield f"Nothing would run: every batch point is skipped ({len(plan.skipped)})."
        return
    yield (
        f"{plural(len(remaining), 'layout')} with {plural(num_rungs(remaining), 'batch point')} at most, and"
        f" up to {plan.num_final(setup.rules)} final runs; at most about {duration(seconds)},"
        f" {seconds * setup.cluster.num_devices:.0f} device seconds (estimated)."
    )


def _as_object(setup: StudySetup, budget: Budget, remaining: Sequence[Candidate], seconds: float) -> dict[str, Any]:
    limits = {option: limit_s for option, limit_s in _limits(setup, budget).items() if limit_s is not None}
    return {
        "space": setup.space.name,
        "cluster": dataclasses.asdict(setup.cluster),
        "recipes": [recipe.label for recipe in setup.recipes],
        "would_run": [
            {
                "recipe": candidate.recipe.label,
                "layout": dataclasses.asdict(candidate.layout),
                "micro_batches": candidate.micro_batches,
            }
            for candidate in remaining
        ],
        "skipped": [
            {
                "recipe": measurement.recipe.label,
                "layout": dataclasses.asdict(measurement.layout),
                "micro_batch": measurement.batch.micro_batch,
                "reason": measurement.reason,
            }
            for measurement in setup.plan.skipped
        ],
        "final_runs_at_most": setup.plan.num_final(setup.rules),
        "estimated_s_at_most": seconds,
        "estimated_device_s_at_most": seconds * setup.cluster.num_devices,
        "budget_s": min(limits.values(), default=None),
    }


def _limits(setup: StudySetup, budget: Budget) -> dict[str, float | None]:
    """Returns the seconds after which each budget ends the search; None for a budget that is not set."""
    gpu_s = None if budget.gpu_s is None else budget.gpu_s / setup.cluster.num_devices
    return {"--time-budget": budget.time_s, "--gpu-s": gpu_s}
