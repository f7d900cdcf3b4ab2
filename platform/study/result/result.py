"""The result of a study as one value: for each recipe its ranking, winner or unresolved points, gates, profile,
coverage.

A command computes it once; reports, MLflow and the exit code use it.
"""

import dataclasses
import functools
from collections.abc import Sequence

from platform.study.history import History
from platform.study.keys import by_recipe
from platform.study.result.caveats import Caveat, Evidence, caveats_of
from platform.study.result.coverage import Coverage, coverage
from platform.study.result.float8_price import Float8Price, in_bf16, price_of
from platform.study.result.gate import GateVerdict, has_curves, verdict_on
from platform.study.result.ranking import (
    Comparison,
    PointRuns,
    Spread,
    compared,
    comparisons,
    points,
    pooled_spread,
    rank,
    speed_of,
)
from platform.study.result.tie_break import contenders_of, stopped_of, unresolved_of
from trainers.records.journal import GateCurves, Profile, StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeResult:
    recipe: Recipe
    measurements: tuple[Measurement, ...]
    """All measurements of the recipe, skipped ones included."""
    points: tuple[PointRuns, ...]
    """The recipe's batch points with all their runs, in the order of their first run."""
    ranking: tuple[PointRuns, ...]
    """The points that may win, the best first."""
    contenders: tuple[PointRuns, ...]
    """The points that may be fastest because the machine was disturbed; empty if it was not."""
    unresolved: tuple[PointRuns, ...]
    """The points among which the fastest is not resolved; empty if the best point is the winner."""
    history: History = dataclasses.field(repr=False)

    @property
    def leader(self) -> PointRuns | None:
        """The best point; it is the winner if `is_resolved`. None if nothing ran."""
        return self.ranking[0] if self.ranking else None

    @property
    def winning_point(self) -> PointRuns | None:
        """The winner with all its runs; None if nothing ran or the best is not resolved."""
        return self.leader if self.is_resolved else None

    @property
    def is_uncompared(self) -> bool:
        """Whether only one of several layouts ran, so that the leader was compared with none."""
        tried = self.coverage
        return self.leader is not None and tried is not None and tried.num_tried == 1 and bool(tried.not_tried)

    @property
    def is_resolved(self) -> bool:
        """Whether the leader, if there is one, is the winner."""
        return not self.unresolved and not self.is_uncompared

    @functools.cached_property
    def winner(self) -> Measurement | None:
        return None if self.winning_point is None else self.winning_point.main_run

    @functools.cached_property
    def runner_up(self) -> Measurement | None:
        """The best point of another layout than the winner's that no gate disqualified; None without one.

        A layout stopped as slow cannot win without another run, but it may be the closest to the winner and counts.
        """
        if self.winner is None:
            return None
        disqualified = {measurement.layout for measurement in self.measurements if measurement.phase == "gate"}
        left_out = {self.winner.layout, *disqualified}
        able = next((run for point in self.ranking if (run := point.main_run).layout not in left_out), None)
        slow = [run for run in self.measurements if run.outcome is Outcome.SLOW and run.layout not in left_out]
        return max(filter(None, (able, *slow)), key=speed_of, default=None)

    @functools.cached_property
    def lead(self) -> Comparison | None:
        """The winner compared with the best other layout; None without a winner or another layout."""
        best, other = self.winning_point, self.runner_up
        point = self.point_of(other) if other is not None else None
        return self.beside(best, point) if best is not None and point is not None else None

    def beside(self, first: PointRuns, second: PointRuns) -> Comparison:
        """Returns the comparison of two of the recipe's points, the same in every sentence and view."""
        return compared(first, second, of_two=self._spread)

    def point_of(self, measurement: Measurement) -> PointRuns | None:
        """Returns the point that has `measurement` (by identity) among its runs; None if there is none."""
        return next((point for point in self.points if any(run is measurement for run in point.all)), None)

    @property
    def runs_to_resolve(self) -> int | None:
        """Number of runs of each unresolved point that would resolve all of them, estimated; None if no point is
        unresolved or one of them has fewer than two pairs with the leader.
        """
        runs = [self.beside(self.unresolved[0], other).runs_to_resolve for other in self.unresolved[1:]]
        numbers = [number for number in runs if number is not None]
        return max(numbers) if numbers and len(numbers) == len(runs) else None

    @functools.cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(comparisons(self.ranking))

    @functools.cached_property
    def _spread(self) -> Spread | None:
        return pooled_spread(self.ranking)

    @functools.cached_property
    def gates(self) -> tuple[tuple[GateCurves, GateVerdict | None], ...]:
        """The curves of each numerics gate with their verdict; None for a reference's curves or without a reference."""
        of_recipe = [gate for gate in self.history.gates if gate.recipe == self.recipe]
        return tuple((curves, None if curves.is_reference else self._verdict_on(curves.layout)) for curves in of_recipe)

    @functools.cached_property
    def gate(self) -> GateVerdict | None:
        return self.winner and self._verdict_on(self.winner.layout)

    @property
    def has_curves(self) -> bool:
        return self.winner is not None and has_curves(self.winner, self.history.gates)

    @functools.cached_property
    def profile(self) -> Profile | None:
        return self.winner and self.history.profile_of(self.winner)

    @functools.cached_property
    def coverage(self) -> Coverage | None:
        return coverage(self.history, self.recipe)

    @functools.cached_property
    def caveats(self) -> tuple[Caveat, ...]:
        return caveats_of(
            Evidence(
                recipe=self.recipe,
                measurements=self.measurements,
                points=self.points,
                winning_point=self.winning_point,
                comparisons=self.comparisons,
                gate=self.gate,
                coverage=self.coverage,
            )
        )

    @property
    def judged(self) -> tuple[Measurement, ...]:
        """The measurements that decide the verdict.

        Empty if the search ended before the recipe's first trial while layouts were left to try: skipped points alone
        decide nothing.
        """
        has_begun = any(measurement.outcome is not Outcome.SKIPPED for measurement in self.measurements)
        tried_all = self.history.end is not None and self.history.end.tried_all
        nothing_left = self.coverage is not None and not self.coverage.not_tried
        return self.measurements if has_begun or tried_all or nothing_left else ()

    def _verdict_on(self, layout: Layout) -> GateVerdict | None:
        return verdict_on(layout, self.recipe, self.history.gates)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StudyResult:
    """The result of a study for each recipe, at the time it was computed."""

    by_id: dict[str, RecipeResult]
    """Results by recipe id: the study's recipes in their order, then others that were measured."""
    history: History = dataclasses.field(repr=False)

    @classmethod
    def of(cls, history: History) -> "StudyResult":
        """Returns the result of the study so far."""
        groups = by_recipe(history.measurements)
        recipes = {recipe.id: recipe for recipe in (history.header.recipes if history.header else ())}
        recipes |= {recipe_id: group[0].recipe for recipe_id, group in groups.items() if recipe_id not in recipes}
        by_id = {recipe.id: _of_recipe(recipe, groups.get(recipe.id, ()), history) for recipe in recipes.values()}
        return cls(by_id=by_id, history=history)

    @property
    def header(self) -> StudyHeader:
        assert self.history.header is not None
        return self.history.header

    @property
    def of_study(self) -> list[RecipeResult]:
        return [self.by_id[recipe.id] for recipe in self.header.recipes]

    @property
    def measured(self) -> list[RecipeResult]:
        return [result for result in self.by_id.values() if result.measurements]

    def float8_price(self, result: RecipeResult) -> Float8Price | None:
        """Returns the speed and loss of FP8 compared with bf16; None without FP8 or if bf16 is not searched."""
        bf16_result = self.by_id.get(in_bf16(result.recipe).id)
        if not result.recipe.float8_scaling or bf16_result is None:
            return None
        best, bf16 = result.winning_point, bf16_result.winning_point
        return price_of(result.recipe, compared(best, bf16) if best and bf16 else None, self.history.gates)

    def beside(self, first: Measurement, second: Measurement) -> Comparison | None:
        """Returns the comparison of two measurements' points; None for one point, other recipes or another study."""
        of_recipe = self.by_id.get(first.recipe.id)
        sides = [of_recipe and of_recipe.point_of(measurement) for measurement in (first, second)]
        if of_recipe is None or sides[0] is None or sides[1] is None or sides[0] is sides[1]:
            return None
        return of_recipe.beside(sides[0], sides[1])

    @property
    def is_resolved(self) -> bool:
        return all(result.is_resolved for result in self.by_id.values())

    @property
    def has_leader(self) -> bool:
        return any(result.ranking for result in self.by_id.values())

    @property
    def winners(self) -> list[tuple[RecipeResult, Measurement]]:
        return [(result, result.winner) for result in self.by_id.values() if result.winner is not None]


def _of_recipe(recipe: Recipe, group: Sequence[Measurement], history: History) -> RecipeResult:
    of_recipe = points(group, history.paces)
    ranking, stopped = rank(of_recipe), stopped_of(of_recipe)
    return RecipeResult(
        recipe=recipe,
        measurements=tuple(group),
        points=tuple(of_recipe),
        ranking=tuple(ranking),
        contenders=tuple(contenders_of(ranking, stopped)),
        unresolved=tuple(unresolved_of(ranking, stopped)),
        history=history,
    )
