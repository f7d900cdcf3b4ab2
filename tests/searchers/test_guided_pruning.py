"""The guided search: the points that it holds back, rules out, or finds not worth their time."""

# pyright: reportPrivateUsage=false
import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.cost_model.ordering import known_columns
from platform.searchers.guidance.fitting import Fitting
from platform.searchers.guidance.points import make_points
from platform.searchers.guidance.pruning import Pruning
from platform.searchers.guidance.worth import expected_saving, rungs_worth_it
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem
from platform.validate.replaying.command import read_cells
from search_spaces.candidate import Candidate
from tests.samples import layout, measurement, oom
from tests.search.loop.backend import candidates
from tests.searchers.guided_problem import BLOOM, H200S, PLANNED, ran
from trainers.records.measurement import Measurement, Outcome


class TestHeldBack:
    """Points that are more likely to run out of memory than to run, on devices that BLOOM fills."""

    SMALLER = dataclasses.replace(H200S, device_memory_gib=79.0)
    TIGHT = dataclasses.replace(PLANNED, columns=known_columns(BLOOM, SMALLER, None), tokens=None)

    @classmethod
    @functools.cache
    def searched(cls, more: float) -> tuple[Guided[Candidate], list[tuple[Candidate, int, float]]]:
        """Runs a search to its end where each peak is `more` times the predicted one; returns it with what ran and its
        peak.
        """
        searcher, suggestions = Guided(cls.TIGHT), list[tuple[Candidate, int, float]]()
        points = make_points(cls.TIGHT)
        while (suggested := searcher.suggest()) is not None:
            owner = next(p for p, candidate in enumerate(BLOOM) if candidate.key == suggested.key)
            results: list[Measurement] = []
            for rung in suggested.micro_batches:
                (point,) = np.flatnonzero((points.owner == owner) & (points.micro_batch == rung))
                peak = more * math.exp(float(points.log_allocated_gib[point]))
                suggestions.append((suggested, rung, peak))
                on: dict[str, Any] = {"recipe": suggested.recipe, "on": suggested.layout, "micro_batch": rung}
                if peak > cls.SMALLER.device_memory_gib:
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
        some = BLOOM[::3]
        problem = dataclasses.replace(
            self.TIGHT, candidates=some, columns=known_columns(some, self.SMALLER, None), tokens=tokens
        )
        searcher, held = Guided(problem), list[bool]()
        points = make_points(problem)
        while (suggested := searcher.suggest()) is not None and not any(held):
            owner = next(p for p, candidate in enumerate(some) if candidate.key == suggested.key)
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

    def test_host_memory_that_ran_out_teaches_nothing_on_the_devices(self) -> None:
        points = make_points(self.TIGHT)
        every = np.arange(len(points), dtype=np.int64)
        away = next(point for point in every if BLOOM[int(points.owner[point])].layout.offload == "moments")
        candidate, fitting = BLOOM[int(points.owner[away])], Fitting(points)
        before = fitting.chances(every)
        unsized: dict[str, Any] = {"asked_gib": None, "allocated_gib": None, "reserved_gib": None}
        killed = oom(recipe=candidate.recipe, on=candidate.layout, micro_batch=1, **unsized)
        fitting.learn(int(away), killed, timed=False)
        assert np.array_equal(fitting.chances(every), before)

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

    @pytest.mark.parametrize("of_host", [False, True])
    def test_host_memory_that_ran_out_rules_out_nothing_that_holds_less_there(self, of_host: bool) -> None:
        """Checks that moments which did not fit in host memory leave layouts with moments on the device to be tried."""
        of_ddp = [candidate for candidate in BLOOM if candidate.layout.engine == "ddp"]
        away = next(
            candidate
            for candidate in of_ddp
            if (candidate.layout.offload, candidate.layout.checkpointing) == ("moments", "selective")
        )
        held, plainer = (
            {
                candidate.key
                for candidate in of_ddp
                if candidate.layout == dataclasses.replace(away.layout, offload=offload, checkpointing=checkpointing)
            }
            for offload, checkpointing in (("none", "selective"), ("moments", "none"))
        )
        assert held and plainer
        searcher = Guided(Problem(candidates=of_ddp, columns=known_columns(of_ddp, H200S, None)))
        unsized: dict[str, Any] = {"asked_gib": None, "allocated_gib": None, "reserved_gib": None}
        searcher.update(
            away, [oom(recipe=away.recipe, on=away.layout, micro_batch=1, rank=0, **(unsized if of_host else {}))]
        )
        suggested: set[str] = set()
        while (candidate := searcher.suggest()) is not None:
            suggested.add(candidate.key)
            searcher.update(candidate, ran(candidate, 1.0))
        assert bool(held & suggested) is of_host
        assert not {away.key, *plainer} & suggested

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
