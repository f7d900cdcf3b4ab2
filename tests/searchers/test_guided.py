"""The guided search: its beginning, what it learns, which points it rules out, and its end."""

# pyright: reportPrivateUsage=false
import dataclasses
import math

import numpy as np
import pytest

from platform.cost_model import regression  # pyright takes `from platform import` otherwise
from platform.cost_model.ordering import known_columns, likely_best_first
from platform.cost_model.regression import TIME, learn
from platform.searchers import guided
from platform.searchers.guidance.points import make_points
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem, TrialCosts
from search_spaces.candidate import Candidate
from tests.samples import layout
from tests.search.loop.backend import RECIPE, candidates
from tests.searchers.guided_problem import BLOOM, H200S, PLANNED, ran
from trainers.records.measurement import Outcome


class TestManyMeasurements:
    def test_a_regression_learns_from_the_best_and_a_spread_of_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(regression, "MAX_TRAINING_POINTS", 10)
        away = np.array([*range(50, 100), 0.5, 0.1, 0.2, 0.4, 0.3])
        taught = regression.teachers(away)
        assert len(taught) == len(set(taught)) == 10
        assert {50, 51, 52, 53, 54} <= set(taught), "the five nearest"
        assert {0, 49} <= set(taught), "the others from one end to the other"
        searcher = Guided(PLANNED)
        for number, candidate in enumerate(BLOOM[:12]):
            searcher.update(candidate, ran(candidate, 10.0 + number))
        assert len(searcher._timing.posterior().index) == 10
        assert searcher.suggest() is not None


class TestBeginning:
    def test_it_begins_with_what_is_predicted_to_be_best(self) -> None:
        first = Guided(PLANNED).suggest()
        assert first is not None
        assert first.key == likely_best_first(BLOOM, H200S, None)[0][0].key

    def test_of_layouts_that_are_predicted_alike_it_begins_with_one_that_compiles_soon(self) -> None:
        """Checks that only a lead that runs could show is worth two minutes of compiling."""
        owner = make_points(PLANNED)
        order = owner.owner[np.argsort(-owner.log_rank, kind="stable")]
        first, others = int(order[0]), [number for number in range(len(BLOOM)) if number != order[0]]
        assert self._begins({first: 130.0}) != BLOOM[first].key
        assert self._begins(dict.fromkeys(others, 130.0)) == BLOOM[first].key
        near = owner.log_rank >= owner.log_rank.max() - guided.RESOLUTION
        alike = {int(number) for number in owner.owner[near]}
        assert self._begins(dict.fromkeys(alike, 130.0)) == BLOOM[first].key, "slower ones do not pass it"

    def _begins(self, compile_s: dict[int, float]) -> str:
        seconds = [compile_s.get(number, 0.0) for number in range(len(BLOOM))]
        first = Guided(dataclasses.replace(PLANNED, compile_s=seconds)).suggest()
        assert first is not None
        return first.key

    def test_without_predictions_it_begins_with_the_space_s_first_and_its_whole_ladder(self) -> None:
        assert Guided(Problem(candidates=BLOOM)).suggest() == BLOOM[0]


class TestOrder:
    def test_the_plan_s_order_decides_among_those_that_measurements_do_not_pass_over(self) -> None:
        """Checks BLOOM-7b1 with one rung a layout, whose steps take as long as predicted: the first eight of the plan
        are within 1 % of each other; later ones are 5 to 9 % slower than the first, which others may beat.
        """
        alone = [dataclasses.replace(candidate, micro_batches=candidate.micro_batches[:1]) for candidate in BLOOM]
        problem = dataclasses.replace(PLANNED, candidates=alone, columns=known_columns(alone, H200S, None))
        points = make_points(problem)
        place = {candidate.key: number for number, candidate in enumerate(alone)}
        plan = np.argsort(-points.log_rank, kind="stable").tolist()
        searcher, suggested_places = Guided(problem), list[int]()
        for _ in range(20):
            suggested = searcher.suggest()
            assert suggested is not None
            suggested_places.append(place[suggested.key])
            searcher.update(suggested, ran(suggested, math.exp(points.log_step_s[suggested_places[-1]])))
        assert suggested_places[:8] == plan[:8]
        others = set(suggested_places) - set(plan[:20])
        passed_over = set(plan[:20]) - set(suggested_places)
        assert others, "not the plan's order alone"
        fastest, slowest = (points.log_step_s[list(places)] for places in (others, passed_over))
        assert fastest.min() < slowest.min(), "one of them is faster, if it fits"


class TestSurprise:
    def test_residuals_within_the_prior_narrow_and_widen_nothing(self) -> None:
        points = make_points(PLANNED)
        index = np.arange(4, dtype=np.int64)
        assert learn(points, index, np.full(4, 0.02), TIME).surprise() == 1.0

    def test_residuals_far_beyond_the_prior_widen_all_others(self) -> None:
        points = make_points(PLANNED)
        index = np.arange(4, dtype=np.int64)
        off = np.array([2.0, 2.5, -1.0, 1.2])
        assert learn(points, index, off, dataclasses.replace(TIME, stall=0.0)).surprise() > 4.0


class TestLearning:
    def test_what_one_value_of_an_axis_costs_is_learned_for_all_layouts_of_it(self) -> None:
        """Checks that layouts without recomputation come first where it costs much more than predicted."""
        problem = Problem(
            candidates=candidates(
                layouts=[
                    layout(
                        engine="ddp",
                        zero_stage=0,
                        dp_shard=1,
                        dp_replicate=2,
                        bucket_mib=mib,
                        checkpointing=checkpointing,
                    )
                    for mib in range(0, 80, 4)
                    for checkpointing in ("none", "full")
                ]
            )
        )
        searcher = Guided(problem)
        suggestions: list[Candidate] = []
        for _ in range(12):
            suggested = searcher.suggest()
            assert suggested is not None
            suggestions.append(suggested)
            searcher.update(suggested, ran(suggested, 2.0 if suggested.layout.checkpointing == "full" else 1.0))
        assert all(suggestion.layout.checkpointing == "none" for suggestion in suggestions[4:])

    def test_a_measured_point_is_known_and_its_neighbours_follow(self) -> None:
        points = make_points(PLANNED)
        index = np.array([0], dtype=np.int64)
        posterior = learn(points, index, np.array([0.3]), TIME)
        mean, sigma = posterior.each(np.arange(len(points), dtype=np.int64))
        assert mean[0] == pytest.approx(0.3, abs=0.03) and sigma[0] < 0.05
        assert np.median(mean) > 0.02 and (mean[1:] < 1.05 * mean[0]).all(), (
            "a shared error, most of it the point's own"
        )
        assert sigma.max() > 3 * sigma[0]

    def test_what_was_stopped_as_slow_teaches_as_much_as_what_was_not(self) -> None:
        """Checks that a rung which was stopped as far behind changes the estimates of its neighbours just as a finished
        one does; otherwise each neighbour would be tried for itself.
        """
        ok, slow = Guided(PLANNED), Guided(PLANNED)
        best, other = BLOOM[:2]
        for searcher, outcome in ((ok, Outcome.OK), (slow, Outcome.SLOW)):
            searcher.update(best, ran(best, 10.0))
            searcher.update(other, [dataclasses.replace(result, outcome=outcome) for result in ran(other, 60.0)])
        everything = np.arange(len(ok._points), dtype=np.int64)
        for mine, theirs in zip(
            slow._timing.posterior().each(everything), ok._timing.posterior().each(everything), strict=True
        ):
            assert np.allclose(mine, theirs)
        assert slow.suggest() == ok.suggest()

    def test_a_step_that_its_device_waited_in_tells_less_of_the_others(self) -> None:
        """Checks that a step whose pace the host set moves the other layouts less: those that keep the device busy need
        not be as slow.
        """
        means: list[float] = []
        for busy_pct in (100.0, 50.0):
            searcher = Guided(PLANNED)
            searcher.update(BLOOM[0], [dataclasses.replace(ran(BLOOM[0], 60.0)[0], utilization_pct=busy_pct)])
            everything = np.arange(len(searcher._points), dtype=np.int64)
            means.append(float(np.median(searcher._timing.posterior().each(everything)[0])))
        assert 0 < means[1] < 0.97 * means[0]

    def test_the_linear_part_is_near_the_whole_posterior(self) -> None:
        points = make_points(PLANNED)
        rng = np.random.default_rng(0)
        index = np.arange(0, len(points), 3, dtype=np.int64)
        residuals = 0.1 + points.effects[index] @ rng.normal(size=points.effects.shape[1])
        posterior = learn(points, index, residuals, TIME)
        everything = np.arange(len(points), dtype=np.int64)
        assert np.abs(posterior.roughly() - posterior.each(everything)[0]).max() < 0.1

    def test_peaks_above_the_predicted_ones_lower_the_chance_of_fitting(self) -> None:
        first, second = Guided(PLANNED), Guided(PLANNED)
        candidate = next(space_candidate for space_candidate in BLOOM if space_candidate.layout.checkpointing == "full")
        points = make_points(PLANNED)
        place = next(p for p in range(len(points)) if BLOOM[int(points.owner[p])].key == candidate.key)
        for searcher, factor in ((first, 1.0), (second, 1.15)):
            peak = math.exp(float(points.log_allocated_gib[place])) * factor
            result = dataclasses.replace(ran(candidate, 100.0)[0], peak_allocated_gib=peak)
            searcher.update(dataclasses.replace(candidate, micro_batches=candidate.micro_batches[:1]), [result])
        everything = np.arange(len(points), dtype=np.int64)
        lower = second._fitting.chances(everything) - first._fitting.chances(everything)
        assert (lower <= 1e-9).all() and lower.min() < -0.1


def test_each_recipe_has_an_incumbent_of_its_own() -> None:
    other = dataclasses.replace(RECIPE, global_batch=32)
    both = candidates(RECIPE, other)
    searcher = Guided(Problem(candidates=both, tokens=1e6, costs=TrialCosts(num_devices=2)))
    suggestions: set[str] = set()
    for _ in range(4):
        suggested = searcher.suggest()
        assert suggested is not None
        suggestions.add(suggested.recipe.id)
        searcher.update(suggested, ran(suggested, 1.0 if suggested.recipe == RECIPE else 5.0))
    assert suggestions == {RECIPE.id, other.id}
