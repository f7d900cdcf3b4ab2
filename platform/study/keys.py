"""Keys of candidates, and helpers that group measurements by recipe and refine the ladder."""

from collections.abc import Iterable, Sequence

from search_spaces.candidate import Candidate
from trainers.records.journal import TrialStart
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.batch import divides
from trainers.spec.recipe import Recipe


def key_of(measurement: Measurement) -> str:
    return f"{measurement.recipe.id}-{measurement.layout.id}"


def between(candidate: Candidate, measurements: Sequence[Measurement]) -> Sequence[int]:
    """Returns micro-batches that divide the global batch, between the largest that ran and the smallest that was
    refused.

    Refused are runs that went out of memory or thrashed, and skipped rungs. Empty unless the candidate has `refine`.
    """
    refusals = (Outcome.OOM, Outcome.THRASH, Outcome.SKIPPED)
    refused = {measurement.batch.micro_batch for measurement in measurements if measurement.outcome in refusals}
    timed_sizes = (measurement.batch.micro_batch for measurement in measurements if measurement.outcome in TIMED)
    largest = max(timed_sizes, default=None)
    first = min(refused, default=None)
    if largest is None or first is None or not candidate.refine:
        return ()
    return [
        micro_batch
        for micro_batch in range(largest + 1, first)
        if divides(candidate.recipe, candidate.layout, micro_batch)
    ]


def by_recipe(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Returns measurements by recipe id, in order of first appearance."""
    groups: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.recipe.id, []).append(measurement)
    return groups


def of_recipe(recipe: Recipe, measurements: Iterable[Measurement]) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.recipe == recipe]


def key_of_trial(start: TrialStart) -> str:
    """Returns the trial's candidate key. It is computed, because a key in an old journal may hash fewer fields."""
    return f"{start.recipe.id}-{start.layout.id}"


def plain_key(key: str) -> str:
    """Returns the key without the name of a point."""
    return "-".join(key.split("-", 2)[:2])
