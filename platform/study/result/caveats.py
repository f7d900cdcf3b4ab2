"""The caveats of a recipe's result, which every view shows: limits that a reader must know beside the figure."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from platform.study.result.beside_others import beside_others
from platform.study.result.coverage import Coverage
from platform.study.result.gate import GateVerdict
from platform.study.result.ranking import Comparison, PointRuns, Resolution
from trainers.records.measurement import TIMED, Measurement
from trainers.spec.recipe import Recipe

_MOST_NAMED = 3
_OPEN: Resolution = "not resolved"
SAME_LOSS = 0.01
"""Relative difference of first losses below which points with the same data and weights count as starting alike. It
covers differences between kernels and precisions.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Caveat:
    """A caveat that applies to a result."""

    name: str
    """Name of the caveat, such as "not gated"."""
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The parts of a recipe's result that decide its caveats."""

    recipe: Recipe
    measurements: Sequence[Measurement]
    points: Sequence[PointRuns]
    winning_point: PointRuns | None
    """The winner with all its runs; None without a winner."""
    comparisons: Sequence[Comparison]
    """Comparisons of the best point with others, the next best first."""
    gate: GateVerdict | None
    coverage: Coverage | None


def _not_resolved(evidence: Evidence) -> str:
    open_words = [comparison.open_words for comparison in evidence.comparisons if comparison.resolution == _OPEN]
    if evidence.winning_point is None or not open_words:
        return ""
    more = f"; against {len(open_words) - _MOST_NAMED} more" if len(open_words) > _MOST_NAMED else ""
    return f"{'; '.join(open_words[:_MOST_NAMED])}{more}"


def _miniature(evidence: Evidence) -> str:
    recipe = evidence.recipe
    if recipe.miniature_of is None:
        return ""
    return f"{recipe.name} stands in for {recipe.miniature_of}, its speed says nothing of the model itself"


def _forced_balance(evidence: Evidence) -> str:
    words = evidence.recipe.forced_balance
    return f"tokens were sent to drawn experts ({words}), and learned routing is less even" if words else ""


def _predicted(evidence: Evidence) -> str:
    if any(measurement.outcome in TIMED for measurement in evidence.measurements) or evidence.coverage is None:
        return ""
    is_predicted = any(layout.tokens_per_s is not None for layout in evidence.coverage.not_tried)
    return "no step was timed, so that all speeds are predictions" if is_predicted else ""


def _few_tried(evidence: Evidence) -> str:
    coverage, reasons = evidence.coverage, list[str]()
    if coverage is not None and coverage.not_tried and coverage.num_tried:
        reasons.append(f"{coverage.words} were tried, and another one may be faster")
    if short := [run for point in evidence.points for run in point.all if run.untried_micro_batch]:
        named = ", ".join(
            f"{run.layout.label} (above {run.batch.micro_batch}, up to {run.untried_micro_batch})"
            for run in short[:_MOST_NAMED]
        )
        more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
        reasons.append(f"larger micro-batches were not tried for want of time, and may be faster: {named}{more}")
    return "; ".join(reasons)


def _not_repeated(evidence: Evidence) -> str:
    if evidence.winning_point is None or evidence.winning_point.runs:
        return ""
    return "the winner did not run again in fresh processes, and the best of several single figures is too high"


def _not_gated(evidence: Evidence) -> str:
    if evidence.winning_point is None or evidence.gate is not None:
        return ""
    if evidence.recipe.workload:
        training = "a command" if evidence.recipe.command else "a function"
        return f"nothing inside of {training} is compared; {first_losses(evidence.measurements)}"
    return "whether the winner trains as a plain layout does was not compared"


def _unlike_batches(evidence: Evidence) -> str:
    sizes = {measurement.global_batch for measurement in evidence.measurements if measurement.outcome in TIMED}
    if not evidence.recipe.grad_accum or len(sizes) < 2:
        return ""
    return (
        f"global batches of {min(sizes):,} to {max(sizes):,} are different recipes, and speed alone does not choose"
        " between them"
    )


def _remarked(evidence: Evidence) -> str:
    return "" if evidence.winning_point is None else evidence.winning_point.main_run.remark


def _disturbed(evidence: Evidence) -> str:
    count, reasons = sum(point.disturbed for point in evidence.points), list[str]()
    if count:
        points = "1 point's runs are" if count == 1 else f"the runs of {count} points are"
        reasons.append(f"{points} further from the search's figure than on a quiet machine")
    if beside := [point for point in beside_others(evidence.points) if not point.runs]:
        names = ", ".join(f"{p.main_run.layout.label} at {p.main_run.batch.micro_batch}" for p in beside[:_MOST_NAMED])
        reasons.append(f"beside {names} other work took more than beside the fastest, without a further run")
    return "; ".join(reasons)


def _side_by_side(evidence: Evidence) -> str:
    """Returns a reason if trials on different nodes were compared. A round of confirmation runs keeps its nodes."""
    places = {frozenset(m.addresses) for m in evidence.measurements if m.outcome in TIMED and m.addresses}
    if evidence.winning_point is None or evidence.winning_point.runs or len(places) < 2:
        return ""
    return f"trials ran on {len(places)} sets of nodes, and the winner did not run again beside others on the same"


DECLARED: Mapping[str, Callable[[Evidence], str]] = {
    _OPEN: _not_resolved,
    "miniature": _miniature,
    "forced balance": _forced_balance,
    "predicted": _predicted,
    "few tried": _few_tried,
    "unlike batches": _unlike_batches,
    "not repeated": _not_repeated,
    "not gated": _not_gated,
    "as reported": _remarked,
    "disturbed": _disturbed,
    "side by side": _side_by_side,
}
"""Every caveat by name: a function that returns the reason why it applies, or ""."""


def caveats_of(evidence: Evidence) -> tuple[Caveat, ...]:
    """Returns the caveats that apply, in the order of `DECLARED`."""
    reasons = {name: reason_of(evidence) for name, reason_of in DECLARED.items()}
    return tuple(
        Caveat(name=name, sentence=f"{name.capitalize()}: {reason}.") for name, reason in reasons.items() if reason
    )


def first_losses(measurements: Sequence[Measurement]) -> str:
    """Returns a clause on how the first losses of a command's points compare."""
    losses = [measurement.losses[0] for measurement in measurements if measurement.losses]
    if len(losses) < 2:
        return "its steps report no losses to compare"
    apart = (max(losses) - min(losses)) / max(abs(statistics.median(losses)), 1e-9)
    if apart <= SAME_LOSS:
        return f"the first losses of its {len(losses)} runs differ by {apart:.2g} at most, relatively"
    return (
        f"the first losses of its {len(losses)} runs differ by {apart:.1%}: the order of its data or its first weights"
        " are not fixed, or a flag changes what is trained"
    )


def names_of(caveats: Sequence[Caveat]) -> str:
    """Returns the caveats' names as text, such as "miniature, not gated"; "" if there are none."""
    return ", ".join(caveat.name for caveat in caveats)
