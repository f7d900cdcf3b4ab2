"""The guided search with old studies' measurements, and its end."""

# pyright: reportPrivateUsage=false
import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from platform.cost_model.ordering import known_columns
from platform.searchers import guided
from platform.searchers.guidance.planned_run import _short
from platform.searchers.guidance.points import make_points
from platform.searchers.guided import Guided
from platform.searchers.problem import Earlier, Problem
from search_spaces.candidate import Candidate
from tests.samples import measurement, oom
from tests.search.loop.backend import candidates
from tests.searchers.guided_problem import BLOOM, H200S, PLANNED, ran
from trainers.records.measurement import Measurement, Outcome


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

    @pytest.mark.heavy
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
        # Each with and without recomputation.
        now = [
            candidate for candidate in BLOOM if candidate.layout.engine == "fsdp" and candidate.layout.offload == "none"
        ]
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

    @pytest.mark.heavy
    def test_with_nothing_planned_it_goes_on_to_the_last(self) -> None:
        assert self.stopped(None)[1] == "every layout of the space was tried"

    def test_it_does_not_end_before_anything_ran(self) -> None:
        searcher = Guided(dataclasses.replace(PLANNED, tokens=1.0))
        assert searcher.suggest() is not None
