"""The result of a study: of each recipe the ranking, the winner or what is not resolved, the gate and the profile."""

import dataclasses
from collections.abc import Iterable

from platform.finals.contenders import contenders, unresolved
from platform.finals.gate import Verdict, verdict_on
from platform.finals.ranking import Comparison, PointRuns, comparisons, ranked
from platform.study.history import History, by_recipe
from trainers.values.journal import Profile
from trainers.values.measurement import Measurement, Outcome
from trainers.values.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecipeResult:
    """What a study says of one recipe."""

    recipe: Recipe
    measurements: tuple[Measurement, ...]
    """All of the recipe, skipped ones too."""
    judged: tuple[Measurement, ...]
    """What a verdict goes by: nothing where the search ended before its first trial with the recipe, since what was
    skipped beforehand says nothing of what was left to try."""
    ranking: tuple[PointRuns, ...]
    """The points that may win, the best first."""
    contenders: tuple[PointRuns, ...]
    """The points that may each be the fastest because the machine was disturbed; none where it was not."""
    unresolved: tuple[PointRuns, ...]
    """The points between which the fastest is not resolved; none where the best is the winner."""
    gate: Verdict | None
    """On the winner's numerics; None without a winner, or where curves are missing."""
    profile: Profile | None
    """The winner's; None where it has none."""

    @property
    def leader(self) -> PointRuns | None:
        """The best point, the winner where that is resolved; None where nothing ran."""
        return self.ranking[0] if self.ranking else None

    @property
    def winner(self) -> Measurement | None:
        """The run that stands for the best point; None where nothing ran, or where it is not resolved which is it."""
        return self.leader.shown if self.leader is not None and not self.unresolved else None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The best point beside each other that was run as often, the next best first."""
        return tuple(comparisons(self.measurements))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a study says of each recipe, at the moment at which it was computed."""

    by_id: dict[str, RecipeResult]
    """By recipe id: the study's recipes in their order, then others that were measured."""

    @classmethod
    def of(cls, history: History) -> "Result":
        """The result of the study so far."""
        groups = by_recipe(history.measurements)
        recipes = {recipe.id: recipe for recipe in (history.header.recipes if history.header else ())}
        recipes |= {recipe_id: group[0].recipe for recipe_id, group in groups.items() if recipe_id not in recipes}
        return cls(by_id={each.id: _result(each, groups.get(each.id, ()), history) for each in recipes.values()})

    @property
    def is_resolved(self) -> bool:
        """Whether of no recipe it is open which layout is the fastest."""
        return not any(each.unresolved for each in self.by_id.values())

    @property
    def has_leader(self) -> bool:
        """Whether something ran that may win."""
        return any(each.ranking for each in self.by_id.values())

    @property
    def winners(self) -> dict[str, RecipeResult]:
        """The recipes that have a winner, by id."""
        return {recipe_id: each for recipe_id, each in self.by_id.items() if each.winner is not None}


def _result(recipe: Recipe, group: Iterable[Measurement], history: History) -> RecipeResult:
    measurements = tuple(group)
    begun = any(each.outcome is not Outcome.SKIPPED for each in measurements)
    tried_all = history.end is not None and history.end.tried_all
    ranking, still_open = tuple(ranked(measurements)), tuple(unresolved(measurements))
    best = ranking[0].shown if ranking and not still_open else None
    return RecipeResult(
        recipe=recipe,
        measurements=measurements,
        judged=measurements if begun or tried_all else (),
        ranking=ranking,
        contenders=tuple(contenders(measurements)),
        unresolved=still_open,
        gate=best and verdict_on(best.layout, best.recipe, history.gates),
        profile=best and history.profile_of(best),
    )
