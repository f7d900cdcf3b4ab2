"""Prints for `--dry-run` what a search would run, what it would skip and why, and its cost at most."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from platform.common.text import duration, plural
from platform.search.loop.budget import Budget
from platform.search.setup.planning import Candidate, num_rungs
from platform.search.setup.study_setup import StudySetup
from platform.study.history import History
from trainers.spec.float8 import float8_sentence


def show_dry_run(subject: StudySetup, budget: Budget, history: History, *, as_object: bool) -> None:
    """Prints what a search of `subject` would still run given its study's `history`: lines, or one JSON object where
    `as_object`.
    """
    missing = ((candidate, history.missing(candidate)) for candidate in subject.plan.candidates)
    remaining = [dataclasses.replace(each, micro_batches=rungs) for each, rungs in missing if rungs]
    seconds = subject.plan.expected_s(remaining, subject.cluster, subject.timing, subject.rules)
    if as_object:
        print(json.dumps(_as_object(subject, budget, remaining, seconds)))
        return
    _print(subject, remaining, seconds)
    for option, limit_s in _limits(subject, budget).items():
        if limit_s is not None and limit_s < seconds:
            whose = budget.time_words if budget.of_space else f"({option})"
            print(f"The budget ends it after {duration(limit_s)} {whose}.")


def _print(subject: StudySetup, remaining: Sequence[Candidate], seconds: float) -> None:
    plan = subject.plan
    print(f"Space {subject.space.name} on {subject.cluster.label_under(subject.cap_gib)}: {subject.space.recipe.label}")
    for recipe in subject.space.recipes:
        if layers := float8_sentence(recipe):
            print(f"  {layers}")
    for candidate in remaining:
        print(f"  would run  {candidate.layout.label}, micro-batch {', '.join(map(str, candidate.micro_batches))}")
    for skipped in plan.skipped:
        print(f"  skipped    {skipped.layout.label}, micro-batch {skipped.batch.micro_batch}: {skipped.reason}")
    if not plan.candidates:
        print(f"Nothing would run: every batch point is skipped ({len(plan.skipped)}).")
        return
    print(
        f"{plural(len(remaining), 'trial')} with up to {plural(num_rungs(remaining), 'rung')} and"
        f" up to {plan.num_final(subject.rules)} final runs, {plural(len(plan.skipped), 'batch point')} skipped;"
        f" at most about {duration(seconds)}, {seconds * subject.cluster.num_devices:.0f} device seconds (estimated)."
    )


def _as_object(subject: StudySetup, budget: Budget, remaining: Sequence[Candidate], seconds: float) -> dict[str, Any]:
    limits = {option: limit_s for option, limit_s in _limits(subject, budget).items() if limit_s is not None}
    return {
        "space": subject.space.name,
        "cluster": dataclasses.asdict(subject.cluster),
        "recipes": [recipe.label for recipe in subject.recipes],
        "would_run": [
            {
                "recipe": each.recipe.label,
                "layout": dataclasses.asdict(each.layout),
                "micro_batches": each.micro_batches,
            }
            for each in remaining
        ],
        "skipped": [
            {
                "recipe": each.recipe.label,
                "layout": dataclasses.asdict(each.layout),
                "micro_batch": each.batch.micro_batch,
                "reason": each.reason,
            }
            for each in subject.plan.skipped
        ],
        "final_runs_at_most": subject.plan.num_final(subject.rules),
        "estimated_s_at_most": seconds,
        "estimated_device_s_at_most": seconds * subject.cluster.num_devices,
        "budget_s": min(limits.values(), default=None),
    }


def _limits(subject: StudySetup, budget: Budget) -> dict[str, float | None]:
    """Returns the seconds after which each budget ends the search, None where it is not given."""
    gpu_s = None if budget.gpu_s is None else budget.gpu_s / subject.cluster.num_devices
    return {"--time-budget": budget.time_s, "--gpu-s": gpu_s}
