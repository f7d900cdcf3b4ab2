"""The guided search: its beginning, what it learns, which points it rules out, and its end."""

# pyright: reportPrivateUsage=false
import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.cost_model import regression  # pyright takes `from platform import` otherwise
from platform.cost_model.ordering import known_columns, likely_best_first
from platform.cost_model.regression import TIME, learn
from platform.searchers import guided
from platform.searchers.guidance.fitting import Fitting
from platform.searchers.guidance.planned_run import _short
from platform.searchers.guidance.points import make_points
from platform.searchers.guidance.pruning import Pruning
from platform.searchers.guidance.worth import expected_saving, rungs_worth_it
from platform.searchers.guided import Guided
from platform.searchers.problem import Earlier, Problem, TrialCosts
from platform.validate.replaying.command import read_cells
from search_spaces import load
from search_spaces.candidate import Candidate
from tests.samples import layout, measurement, oom
from tests.search.loop.backend import RECIPE, candidates
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster

H200S = Cluster(
    device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0)
)
PLAIN = ["attention=eager", "loss=plain", "compile=none", "tp=1", "pp=1", "cp=1", "micro_batch=1,2,4,8,16"]
BLOOM = load("bloom7b").with_changes(PLAIN).candidates(4)[0]
"""Candidates without the kernels' axes and of short ladders: a tenth of the layouts, so that a test may go through all
of them.
"""
PLANNED = Problem(
    candidates=BLOOM,
    columns=known_columns(BLOOM, H200S, None),
    costs=TrialCosts(num_devices=4),
    tokens=100e9,
)


def ran(candidate: Candidate, step_s: float) -> list[Measurement]:
    """Returns every rung at one step time."""
    tokens_per_s = candidate.tokens_per_step / step_s
    return [
        measurement(recipe=candidate.recipe, on=candidate.layout, micro_batch=rung, tokens_per_s=tokens_per_s)
        for rung in candidate.micro_batches
    ]


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
        """Checks BLOOM-7b1 with one rung a layout, whose steps take as long as predicted: the first seven of the plan
        are within 1 % of each other; later ones are 5 to 9 % slower than the first, which others may beat.
        """
        alone = [dataclasses.replace(candidate, micro_batches=candidate.micro_batches[:1]) for candidate in BLOOM]
        problem = dataclasses.replace(PLANNED, candidates=alone, columns=known_columns(alone, H200S, None))
        points = make_points(problem)
        place = {candidate.key: number for number, candidate in enumerate(alone)}
        plan = np.argsort(-points.log_rank, kind="stable").tolist()
        searcher, suggested_places = Guided(problem), list[int]()
        for _ in range(14):
            suggested = searcher.suggest()
            assert suggested is not None
            suggested_places.append(place[suggested.key])
            searcher.update(suggested, ran(suggested, math.exp(points.log_step_s[suggested_places[-1]])))
        assert suggested_places[:7] == plan[:7]
        others = set(suggested_places) - set(plan[:14])
        passed_over = set(plan[:14]) - set(suggested_places)
        assert others, "not the plan's order alone"
        fastest, slowest = (points.log_step_s[list(places)] for places in (others, passed_over))
        assert fastest.mean() < slowest.mean(), "faster, if they fit"


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
        assert 0 < means[1] < 0.95 * means[0]

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


class TestHeldBack:
    """Points that are more likely to run out of memory than to run, on devices that BLOOM fills."""

    SMALLER = dataclasses.replace(H200S, device_memory_gib=79.0)
    TIGHT = dataclasses.replace(PLANNED, columns=known_columns(BLOOM, SMALLER, None), tokens=None)

    def searched(self, more: float) -> tuple[Guided[Candidate], list[tuple[Candidate, int, float]]]:
        """Runs a search to its end where each peak is `more` times the predicted one; returns it with what ran and its
        peak.
        """
        searcher, suggestions = Guided(self.TIGHT), list[tuple[Candidate, int, float]]()
        points = make_points(self.TIGHT)
        while (suggested := searcher.suggest()) is not None:
            owner = next(p for p, candidate in enumerate(BLOOM) if candidate.key == suggested.key)
            results: list[Measurement] = []
            for rung in suggested.micro_batches:
                (point,) = np.flatnonzero((points.owner == owner) & (points.micro_batch == rung))
                peak = more * math.exp(float(points.log_allocated_gib[point]))
                suggestions.append((suggested, rung, peak))
                on: dict[str, Any] = {"recipe": suggested.recipe, "on": suggested.layout, "micro_batch": rung}
                if peak > self.SMALLER.device_memory_gib:
                    results.append(oom(**on, rank=0))
                    break
                results.append(measurement(**on, tokens_per_s=1000.0 / (1 + owner), peak_allocated_gib=peak))
            searcher.update(suggested, results)
        return searcher, suggestions

    @pytest.mark.parametrize("more", [0.9, 1.0, 1.1])
    def test_few_rungs_end_in_a_crash_and_the_others_are_told(self, more: float) -> None:
        searcher, suggestions = self.searched(more)
        crashes = sum(peak > self.SMALLER.device_memory_gib for _, _, peak in suggestions)
        held = sum(len(searcher.deferred(candidate)) for candidate in BLOOM)
        assert crashes <= len(suggestions) / 10
        assert len(suggestions) > 20 and held > 5
        assert f"or is predicted to run out of it ({held} batch points)" in searcher.stopped_reason

    def test_what_does_fit_is_run(self) -> None:
        """Checks that, where peaks are a tenth below the predicted ones, rungs that were predicted to be too large
        still run.
        """
        points = make_points(self.TIGHT)
        _, suggestions = self.searched(0.9)
        ran_anyway = 0
        for suggested, rung, _ in suggestions:
            owner = next(p for p, candidate in enumerate(BLOOM) if candidate.key == suggested.key)
            (point,) = np.flatnonzero((points.owner == owner) & (points.micro_batch == rung))
            ran_anyway += bool(points.log_needed[point] > 0)
        assert ran_anyway > 0

    @pytest.mark.parametrize(("tokens", "tried"), [(math.inf, True), (None, False)])
    def test_what_is_held_back_is_tried_once_nothing_that_fits_pays(self, tokens: float | None, tried: bool) -> None:
        """Checks that such points are tried for a run that has no end, where every saving pays in the end, even one by
        a point that may not fit; a search without planned tokens does not try them.
        """
        searcher, held = Guided(dataclasses.replace(self.TIGHT, tokens=tokens)), list[bool]()
        points = make_points(self.TIGHT)
        while (suggested := searcher.suggest()) is not None and not any(held):
            owner = next(p for p, candidate in enumerate(BLOOM) if candidate.key == suggested.key)
            waiting = searcher._held() & (points.owner == owner) & np.isin(points.micro_batch, suggested.micro_batches)
            held.append(bool(waiting.any()))
            assert not waiting.any() or not (searcher._alive & ~searcher._held()).sum() > len(points) / 2
            searcher.update(suggested, ran(suggested, 100.0 + owner))
        assert any(held) == tried

    def test_a_crash_teaches_less_than_an_error_of_memory(self) -> None:
        points = make_points(self.TIGHT)
        near = int(np.argmin(np.abs(points.log_needed + 0.1)))
        every = np.arange(len(points), dtype=np.int64)
        lower: list[float] = []
        for outcome in (Outcome.OOM, Outcome.FAILED):
            fitting, candidate = Fitting(points), BLOOM[int(points.owner[near])]
            before = fitting.chances(every)
            failed = dataclasses.replace(
                oom(recipe=candidate.recipe, on=candidate.layout, micro_batch=1), outcome=outcome
            )
            fitting.learn(near, failed, timed=False)
            lower.append(float((before - fitting.chances(every)).max()))
        assert lower[0] > 2 * lower[1] > 0

    def test_before_anything_ran_nothing_is_held_back(self) -> None:
        searcher = Guided(self.TIGHT)
        assert not any(searcher.deferred(candidate) for candidate in BLOOM)
        points = make_points(self.TIGHT)
        assert (points.log_needed > 0).any()


class TestPruning:
    def heavier(self, ran_out: Candidate, rung: int, all_of: Sequence[Candidate] = BLOOM) -> set[tuple[str, int]]:
        points = make_points(PLANNED if all_of is BLOOM else Problem(candidates=all_of))
        pairs = [(candidate, r) for candidate in all_of for r in candidate.micro_batches]
        place = next(p for p, (candidate, r) in enumerate(pairs) if candidate.key == ran_out.key and r == rung)
        out = Pruning(all_of, points).ruled_out(place)
        return {(pairs[p][0].key, pairs[p][1]) for p in out}

    def test_larger_micro_batches_and_what_shards_or_recomputes_less(self) -> None:
        candidate = next(
            space_candidate
            for space_candidate in BLOOM
            if space_candidate.layout.engine == "deepspeed" and space_candidate.layout.zero_stage == 2
        )
        full = next(
            space_candidate
            for space_candidate in BLOOM
            if space_candidate.layout == dataclasses.replace(candidate.layout, checkpointing="full")
        )
        out = self.heavier(full, 2)
        assert (full.key, 4) in out and (full.key, 1) not in out
        assert (candidate.key, 2) in out and (candidate.key, 8) in out and (candidate.key, 1) not in out, (
            "without recomputation"
        )
        by_key = {space_candidate.key: space_candidate.layout for space_candidate in BLOOM}
        assert {by_key[key].engine for key, _ in out} == {"deepspeed"}, "no engine rules out another"
        assert {by_key[key].zero_stage for key, _ in out} == {0, 1, 2}, "stage 3 shards more"
        assert all(rung >= 2 for _, rung in out)

    def test_without_predictions_no_stage_rules_out_another(self) -> None:
        """Checks layouts without predictions, since ZeRO-3's buckets weigh more than what it shards on a small
        model.
        """
        some = tuple(reversed(BLOOM))
        three = next(
            candidate
            for candidate in some
            if candidate.layout.zero_stage == 3 and candidate.layout.checkpointing == "full"
        )
        pruned = {key for key, _ in self.heavier(three, 1, some)}
        less = [
            dataclasses.replace(three.layout, checkpointing=checkpointing) for checkpointing in ("none", "selective")
        ]
        assert pruned == {candidate.key for candidate in some if candidate.layout in (three.layout, *less)}

    def test_nothing_that_ran_is_ruled_out_by_what_ran_out_of_memory(self) -> None:
        """Checks every cell of this project's tables from H200s."""
        tables = sorted((Path(__file__).parents[2] / "docs" / "measurements").glob("*.csv"))
        errors = 0
        for cell in read_cells(tables)[0]:
            points = make_points(cell.problem(0))
            pruning = Pruning(cell.choices, points)
            for place, choice in enumerate(cell.choices):
                if choice.outcome is Outcome.OOM:
                    errors += 1
                    out = [cell.choices[index] for index in pruning.ruled_out(place)]
                    assert not [excluded_choice for excluded_choice in out if excluded_choice.outcome is Outcome.OK]
        assert errors >= 8

    def test_another_kernel_is_not_ruled_out(self) -> None:
        pair = candidates(layouts=[layout(dp_shard=2, attention=attention) for attention in ("sdpa", "eager")])
        assert self.heavier(pair[0], 1, pair) == {(pair[0].key, micro_batch) for micro_batch in pair[0].micro_batches}

    def test_the_search_leaves_out_what_is_ruled_out_and_says_how_much(self) -> None:
        searcher = Guided(Problem(candidates=BLOOM))
        full = next(
            candidate
            for candidate in BLOOM
            if candidate.layout.checkpointing == "full" and candidate.layout.zero_stage == 3
        )
        searcher.update(full, [oom(recipe=full.recipe, on=full.layout, micro_batch=1, rank=0)])
        suggestions: list[Candidate] = []
        while (suggested := searcher.suggest()) is not None:
            suggestions.append(suggested)
            searcher.update(suggested, ran(suggested, 1.0))
        without = dataclasses.replace(full.layout, checkpointing="none")
        assert without in {candidate.layout for candidate in BLOOM}
        assert without not in {suggestion.layout for suggestion in suggestions}
        assert re.search(r"needs more memory than one that ran out of it \(\d+ batch points\)", searcher.stopped_reason)


class TestWorth:
    @pytest.mark.parametrize(("ahead", "sigma"), [(0.0, 0.1), (0.2, 0.1), (-0.1, 0.05), (-0.2, 0.3), (-0.5, 0.1)])
    def test_the_expected_saving_is_that_of_drawing(self, ahead: float, sigma: float) -> None:
        drawn = np.random.default_rng(0).normal(ahead, sigma, 4_000_000)
        expected = np.maximum(0.0, 1 - np.exp(-drawn)).mean()
        assert float(expected_saving(np.array(ahead), np.array(sigma))) == pytest.approx(expected, rel=0.12, abs=3e-6)

    def test_it_never_falls_with_what_is_ahead(self) -> None:
        values = expected_saving(np.linspace(-2, 1, 500), np.full(500, 0.05))
        assert (np.diff(values) >= -1e-9).all() and (values >= 0).all()

    def test_a_rung_known_to_be_slow_is_not_climbed_and_one_that_may_win_is(self) -> None:
        mean, fits = np.log([0.5, 1.0, 1.05]), np.ones(3)
        covariance = np.diag([1e-6, 4e-3, 4e-3])
        assert rungs_worth_it(mean, covariance, fits, math.log(0.95), np.ones(3), 10.0, elsewhere=1e-3) == [1, 2]

    def test_a_rung_is_left_out_where_the_next_trial_saves_more_a_second(self) -> None:
        mean, fits, covariance = np.log([1.0, 1.05]), np.ones(2), np.diag([4e-3, 4e-3])
        climbed = [
            rungs_worth_it(mean, covariance, fits, math.log(0.95), np.ones(2), 10.0, elsewhere=rate)
            for rate in (0.01, 0.1)
        ]
        assert climbed == [[0, 1], [1]]

    def test_a_lower_rung_is_climbed_where_the_upper_one_may_not_fit(self) -> None:
        mean, covariance = np.log([1.0, 1.1]), np.diag([1e-4, 1e-4])
        surely = rungs_worth_it(mean, covariance, np.array([1.0, 1.0]), math.log(0.9), np.ones(2), 3.0, 0.01)
        perhaps = rungs_worth_it(mean, covariance, np.array([1.0, 0.6]), math.log(0.9), np.ones(2), 3.0, 0.01)
        assert surely == [1] and perhaps == [0, 1]


class TestKnowledgeKept:
    """Measurements of an earlier study, here slower than predicted by factors for the engine and the checkpointing."""

    def answer(self, suggested: Candidate) -> list[Measurement]:
        points, place = (
            make_points(PLANNED),
            next(p for p, candidate in enumerate(BLOOM) if candidate.key == suggested.key),
        )
        slower = {"fsdp": 1.5, "ddp": 1.3, "deepspeed": 1.0}[suggested.layout.engine]
        slower *= 1.4 if suggested.layout.checkpointing == "none" else 1.0
        results: list[Measurement] = []
        for rung in suggested.micro_batches:
            (point,) = np.flatnonzero((points.owner == place) & (points.micro_batch == rung))
            on: dict[str, Any] = {"recipe": suggested.recipe, "on": suggested.layout, "micro_batch": rung}
            if points.log_needed[point] > 0:
                return [*results, oom(**on, rank=0)]
            speed = suggested.tokens_per_step / (slower * math.exp(points.log_step_s[point]))
            peak = math.exp(float(points.log_allocated_gib[point]))
            results.append(measurement(**on, tokens_per_s=speed, peak_allocated_gib=peak))
        return results

    def searched(self, problem: Problem[Candidate]) -> list[list[Measurement]]:
        """Returns what each trial of a search to its own end measured."""
        searcher, answers = Guided(problem), list[list[Measurement]]()
        while (suggested := searcher.suggest()) is not None:
            answers.append(self.answer(suggested))
            searcher.update(suggested, answers[-1])
        return answers

    def earlier(self, trials: list[list[Measurement]]) -> tuple[Earlier[Candidate], ...]:
        return tuple(
            Earlier(
                candidate=Candidate(
                    recipe=trial[0].recipe,
                    layout=trial[0].layout,
                    micro_batches=tuple(measured.batch.micro_batch for measured in trial),
                ),
                results=tuple(trial),
            )
            for trial in trials
        )

    def knowing(self, trials: list[list[Measurement]], candidates: Sequence[Candidate] = BLOOM) -> Problem[Candidate]:
        problem = dataclasses.replace(PLANNED, candidates=candidates, earlier=self.earlier(trials))
        return dataclasses.replace(problem, columns=known_columns(problem.rows, H200S, None))

    @staticmethod
    def best(trials: list[list[Measurement]]) -> Measurement:
        ok = [measured for trial in trials for measured in trial if measured.outcome is Outcome.OK]
        return max(ok, key=lambda result: result.tokens_per_s or 0.0)

    def test_the_old_winner_is_suggested_first_and_measured_anew_and_little_else(self) -> None:
        old = self.searched(PLANNED)
        winner = self.best(old)
        assert old[0][0].layout != winner.layout, "the cost model alone begins elsewhere"
        new = self.searched(self.knowing(old))
        assert new[0][-1].layout == winner.layout
        assert winner.batch in [measured.batch for measured in new[0]]
        assert self.best(new).tokens_per_s == winner.tokens_per_s
        assert sum(map(len, new)) <= sum(map(len, old)) * 2 / 3

    def test_old_measurements_are_neither_picked_nor_an_incumbent_nor_counted_as_tried(self) -> None:
        """Checks that a search which does not end by worth suggests every point of the space that is not held back, and
        no other point.
        """
        old = self.searched(PLANNED)
        searcher = Guided(dataclasses.replace(self.knowing(old), tokens=None))
        assert searcher._timing.incumbents == {}
        suggestions: set[tuple[str, int]] = set()
        while (suggested := searcher.suggest()) is not None:
            rungs = {(suggested.key, rung) for rung in suggested.micro_batches}
            assert not suggestions & rungs
            suggestions |= rungs
            searcher.update(suggested, ran(suggested, 1.0))
        held = {(candidate.key, rung) for candidate in BLOOM for rung in searcher.deferred(candidate)}
        assert suggestions | held == {(candidate.key, rung) for candidate in BLOOM for rung in candidate.micro_batches}
        assert len(suggestions) > 2 * len(held)

    def test_layouts_that_the_space_lacks_teach_and_are_not_suggested(self) -> None:
        """Checks old measurements whose only engine is not in the space now."""
        old = [self.answer(candidate) for candidate in BLOOM if candidate.layout.engine == "deepspeed"]
        now = [candidate for candidate in BLOOM if candidate.layout.engine == "fsdp"]
        knowing = Guided(self.knowing(old, now))
        mean = [
            float(knowing._timing.posterior().each(np.array([knowing._first[place]], dtype=np.int64))[0][0])
            for checkpointing in ("none", "full")
            for place, candidate in enumerate(now)
            if candidate.layout.checkpointing == checkpointing
        ]
        without, full = np.split(np.array(mean), 2)
        assert (without - full).min() > 0.2, "without recomputation all was 1.4 times slower than predicted"
        suggested = knowing.suggest()
        assert suggested is not None and suggested.key in {candidate.key for candidate in now}

    def test_an_old_error_prunes_nothing_and_what_ran_fits(self) -> None:
        full = next(
            candidate
            for candidate in BLOOM
            if candidate.layout.checkpointing == "full" and candidate.layout.zero_stage == 3
        )
        on: dict[str, Any] = {"recipe": full.recipe, "on": full.layout}
        tight = measurement(**on, micro_batch=1, peak_allocated_gib=139.0)
        searcher = Guided(self.knowing([[tight, oom(**on, micro_batch=2, rank=0)]]))
        rows = sum(len(candidate.micro_batches) for candidate in BLOOM)
        assert searcher._alive[:rows].all() and not searcher._alive[rows:].any()
        first = searcher._first[searcher._place[full.key]]
        fits = searcher._fitting.chances(np.array([first, first + 1], dtype=np.int64))
        assert fits[0] == 1.0 and fits[1] < 0.5

    @pytest.mark.parametrize("broken", [{"tokens_per_s": math.nan}, {"peak_allocated_gib": math.inf}])
    def test_figures_that_are_none_are_passed_over(self, broken: dict[str, float]) -> None:
        odd = dataclasses.replace(self.answer(BLOOM[0])[0], **broken)  # type: ignore[reportArgumentType]
        assert Guided(self.knowing([[odd]])).suggest() is not None

    def test_without_predictions_it_teaches_too(self) -> None:
        many = candidates()
        slow_first = [ran(candidate, 1.0 + (place == 0)) for place, candidate in enumerate(many)]
        searcher = Guided(Problem(candidates=many, earlier=self.earlier(slow_first)))
        suggested = searcher.suggest()
        assert suggested is not None and suggested.key != many[0].key
        assert suggested.micro_batches == many[0].micro_batches, "the whole ladder"


class TestStopping:
    def stopped(self, tokens: float | None, device: str = "GPU") -> tuple[int, str]:
        costs = dataclasses.replace(PLANNED.costs, device=device)
        searcher = Guided(dataclasses.replace(PLANNED, tokens=tokens, costs=costs))
        rungs = 0
        while (suggested := searcher.suggest()) is not None:
            rungs += len(suggested.micro_batches)
            # As predicted, so that little is left to be found.
            places = [
                p for p in range(len(searcher._points)) if BLOOM[int(searcher._points.owner[p])].key == suggested.key
            ]
            steps = {int(searcher._points.micro_batch[p]): math.exp(searcher._points.log_step_s[p]) for p in places}
            results = [
                ran(dataclasses.replace(suggested, micro_batches=(r,)), steps[r])[0] for r in suggested.micro_batches
            ]
            searcher.update(suggested, results)
        return rungs, searcher.stopped_reason

    def test_it_ends_when_the_next_trial_costs_more_than_it_may_save(self) -> None:
        rungs, reason = self.stopped(1e8)
        assert rungs < sum(len(candidate.micro_batches) for candidate in BLOOM) / 3
        words = r"stopped: (\S+) % more would save (\S+) GPU-days of (\S+); the next trial costs (\S+)"
        matched = re.fullmatch(words, reason)
        assert matched is not None, reason
        share, saved, plan, cost = map(float, matched.groups())
        assert saved <= cost and saved == pytest.approx(share / 100 * plan, rel=0.2)
        alone = PLANNED.costs.num_devices * (PLANNED.costs.start_s + PLANNED.costs.rung_s)
        assert 86400 * cost == pytest.approx(alone, rel=0.05), (
            "of the best rung: others that may join pay for themselves"
        )

    def test_what_is_too_small_to_be_read_is_nothing(self) -> None:
        assert [_short(value) for value in (8e-30, 0.00041, 29.0, 1180.0)] == ["0", "0.00041", "29", "1180"]

    def test_it_counts_in_the_days_of_what_it_runs_on(self) -> None:
        assert " worker-days of " in self.stopped(1e8, "worker")[1]

    def test_a_longer_run_is_worth_more_trials(self) -> None:
        assert self.stopped(1e8)[0] < self.stopped(1e12)[0]

    def test_a_lead_that_runs_cannot_show_pays_for_no_trial(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without, _ = self.stopped(1e8)
        monkeypatch.setattr(guided, "RESOLUTION", 0.1)
        rungs, reason = self.stopped(1e8)
        assert rungs < without and "more would save" in reason
        endless = Guided(dataclasses.replace(PLANNED, tokens=math.inf))
        endless.update(BLOOM[0], ran(BLOOM[0], 1e-3))
        assert endless.suggest() is not None, "a run without an end pays for every trial"

    def test_with_nothing_planned_it_goes_on_to_the_last(self) -> None:
        assert self.stopped(None)[1] == "every layout of the space was tried"

    def test_it_does_not_end_before_anything_ran(self) -> None:
        searcher = Guided(dataclasses.replace(PLANNED, tokens=1.0))
        assert searcher.suggest() is not None


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
