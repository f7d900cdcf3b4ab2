"""The course of the final trials: the finalists' runs, the winner's last with its gate, then the gate's reference."""

import dataclasses
import math
import sys
from collections.abc import Collection, Mapping, Sequence

from platform.common.text import duration, plural
from platform.search.confirmation.confirmation_costs import UNLIMITED, ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.held_runs import held_run
from platform.search.confirmation.run_order import ConfirmationRun, contenders_run, repeats_left
from platform.search.confirmation.winner_run import WinnerRuns
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.keys import of_recipe
from platform.study.result import gate as gates
from platform.study.result.ranking import points, winner
from platform.study.result.tie_break import contenders, named_winner, unresolved
from search_spaces.candidate import Candidate
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.recipe import Recipe

GATE_MARGIN = 1.1
"""Time that must be left for a gate, as a multiple of its estimate: without the reference's curves a gate is worth
nothing, and it cannot be cut short.
"""
RESERVE_MARGIN = 1.2
"""Time that other trials reserve for a gate, as a multiple of its estimate: the trial before it may take longer than
earlier ones.
"""
MOST_OF_RUNS = 1 / 3
"""Share of a budget up to which a search also reserves time for the finalists' runs."""
MOST_ROUNDS = 6
"""Rounds of the contenders' runs in a session without a budget, which ends them otherwise; another session has as many.
"""
SURE_ROUNDS = 3
"""Rounds that only a budget cuts short: it takes three or four before intervals over pairs are narrow enough to tell
layouts 10 % apart. Without a budget a further round begins only where all rounds together take no longer than the
search's own trials did.
"""


class ConfirmationScheduler:
    """Returns the final trials of a study one after another, from its journal; remembers only which trials of this
    session left nothing, so that they are not repeated for ever.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        rules: ConfirmationRules,
        expected: Mapping[str, Measurement] | None = None,
    ) -> None:
        """Takes the `expected` winners by recipe id, which are predicted before any was measured."""
        self.rules = rules
        self._expected = expected or {}
        self._candidates = candidates
        self._recipes = tuple(dict.fromkeys(candidate.recipe for candidate in candidates))
        self._started: dict[tuple[object, ...], ConfirmationTrial] = {}
        self._winner_runs = WinnerRuns(candidates, rules, self._started, self._expected)
        self._rounds_before: dict[str, int] = {}
        """By recipe id: the number of the last round before this session."""

    def next(
        self,
        history: History,
        left_s: float = math.inf,
        costs: ConfirmationCosts = UNLIMITED,
        *,
        for_new_winner: bool = True,
    ) -> ConfirmationTrial | None:
        """Returns the next final trial, None when there is none; the same trial until it has `started`.

        A finalist runs again only if `left_s` suffices for that run and for the winners' closing trials after it; with
        `for_new_winner`, for all those of a new winner. The first run of a round, which compares nothing alone, waits
        for all others unless there is time for a second one. A winner's last run includes the gate if `left_s` suffices
        for both and for the gate's reference; else it runs without the gate if `left_s` suffices for that. If the
        machine was disturbed, the contenders first run in turn until the fastest of them is resolved. A point without
        head-room that was faster than the winner runs before all others, with its allocator held.
        """
        for recipe in self._recipes:
            measured, attempted = of_recipe(recipe, history.measurements), self._winner_runs.attempted_runs(recipe)
            held = held_run(measured, attempted=attempted)
            if held is not None and left_s >= costs.cold_s + costs.held_s(held.point):
                return _trial_of(held)
            runs = self._repeats_left(recipe, history)
            if runs and self._fits(_pair_of(runs, measured), history, left_s, costs, for_new_winner=for_new_winner):
                return _trial_of(runs[0])
            if unresolved(measured):
                run = self._contenders_run(recipe, history, left_s, costs)
                if run is not None and left_s >= costs.repeat_s(run.point):
                    return _trial_of(run, contends=True)
                continue  # nobody knows yet whose last run and gate are worth their time
            if (trial := self._within(recipe, history, left_s, costs)) is not None:
                return trial
        for recipe in self._recipes:
            runs = self._repeats_left(recipe, history)
            if runs and self._fits(runs[:1], history, left_s, costs, for_new_winner=for_new_winner):
                return _trial_of(runs[0])
        return None

    def profile(
        self, history: History, left_s: float = math.inf, costs: ConfirmationCosts = UNLIMITED
    ) -> ConfirmationTrial | None:
        """Returns the profiling trial of the first winner without a profile for which `left_s` is more than enough,
        where profiles are asked for; it runs once `next` returns None. Finalists' runs without time for them do not
        delay it; a gate does, since what has not passed it may be no winner.
        """
        # A winner's gate that was given and left nothing is missing all the same.
        others = {key: trial for key, trial in self._started.items() if not trial.is_winner_run}
        missing = WinnerRuns(self._candidates, self.rules, others, {})
        for recipe, best in self._unprofiled(history):
            trial = ConfirmationTrial(recipe=recipe, layout=best.layout, rungs=(), profile=best.batch)
            closing = missing.next(recipe, history)
            has_time = left_s > costs.profile_s(best)
            if has_time and trial.key not in self._started and not (closing and closing.gate):
                return trial
        return None

    def _contenders_run(
        self, recipe: Recipe, history: History, left_s: float, costs: ConfirmationCosts
    ) -> ConfirmationRun | None:
        """Returns the contenders' next run in this session; without a budget, `left_s` infinite, within the search's
        time.
        """
        order = contenders(of_recipe(recipe, history.measurements))
        after = self.rules.repeats + 1  # the number of a last run
        before = self._rounds_before.setdefault(
            recipe.id, max((run.repeat for point in order for run in point.runs), default=0)
        )
        most_rounds = MOST_ROUNDS + max(0, before - after) if math.isinf(left_s) else sys.maxsize - after - 1
        run = contenders_run(
            order, after=after, most_rounds=most_rounds, attempted=self._winner_runs.attempted_runs(recipe)
        )
        if run is None:
            return None
        rounds = range(max(before, after) + 1, run.repeat)
        begins = not any(other_run.repeat == run.repeat for point in order for other_run in point.runs)
        if begins and math.isinf(left_s) and len(rounds) >= SURE_ROUNDS:
            round_s = sum(costs.repeat_s(point.search or point.main_run) for point in order)
            if history.trials_s(recipe, rounds) + round_s > history.trials_s(recipe, range(1)):
                return None
        return run

    def reserve_s(
        self,
        history: History,
        costs: ConfirmationCosts,
        free_s: float,
        whole_s: float,
        *,
        for_new_winner: bool = True,
    ) -> float:
        """Returns the seconds to reserve for the final trials that would follow now, where the search can leave
        `free_s` of its budget of `whole_s`; once some have run, and with `for_new_winner`, for those of another winner,
        which would need all of them.

        It covers the winners' closing trials, and their profile if requested; the last runs alone if there is no time
        for the gates; and nothing if there is none for these either, since a part of them is worth nothing. With the
        finalists' runs it is at most a third of the budget. Nothing is reserved while nothing is known of a recipe, and
        where every point is asked for until each was tried.
        """
        if self._waits(history, predicted=self._expected):
            return 0.0
        run_s, gate_s, profile_s = self.closing_s(history, costs, for_new_winner=for_new_winner)
        if run_s + GATE_MARGIN * gate_s + profile_s <= free_s:
            closing_s = run_s + RESERVE_MARGIN * gate_s + profile_s
        elif run_s <= free_s:
            closing_s = run_s
        else:
            return 0.0  # nor does a finalist's run begin
        points = [run.point for recipe in self._recipes for run in self._repeats_left(recipe, history)]
        num_runs = self.rules.repeats * (self.rules.finalists or 1)
        points += [best for best in self._only_expected(history) for _ in range(num_runs)]
        return max(closing_s, min(closing_s + sum(map(costs.repeat_s, points)), MOST_OF_RUNS * whole_s))

    def closing_s(
        self, history: History, costs: ConfirmationCosts, *, for_new_winner: bool = True
    ) -> tuple[float, float, float]:
        """Returns the estimated seconds of the remaining last runs, of what gates add to them, and of profiles; see
        `reserve_s`.
        """
        new_winners = self._recipes if for_new_winner and history.finals_begun else ()
        run_s, gate_s = self._needs_s(history, costs, for_new_winner=new_winners)
        profiled = [best for _, best in self._unprofiled(history)]
        profiled += self._only_expected(history) if self.rules.profile else []
        return run_s, gate_s, sum(map(costs.profile_s, profiled))

    def _only_expected(self, history: History) -> list[Measurement]:
        """Returns the expected winners of recipes that have none yet."""
        unmeasured = [recipe for recipe in self._recipes if not winner(of_recipe(recipe, history.measurements))]
        return [self._expected[recipe.id] for recipe in unmeasured if recipe.id in self._expected]

    def wait(self, history: History) -> bool:
        """Returns whether the search continues before any final run: until each recipe was tried, and until each point
        was where every point is asked for, because one winner for each recipe is worth more than one that is confirmed.
        """
        return self._waits(history)

    def _waits(self, history: History, predicted: Collection[str] = ()) -> bool:
        """Returns what `wait` does, as if the recipes with the ids `predicted` had been tried."""
        every_point = self.rules.finalists is None
        tried_recipes = {
            measurement.recipe.id for measurement in history.measurements if measurement.outcome is not Outcome.SKIPPED
        }.union(predicted)
        return any(
            (every_point or candidate.recipe.id not in tried_recipes) and history.missing(candidate)
            for candidate in self._candidates
        )

    def left_out(self, history: History, costs: ConfirmationCosts = UNLIMITED, cold_s: float = 0.0) -> str:
        """Returns which final trials are missing, "" for none: a resumed session begins with them, unless they `wait`.
        With `costs`, also about how many seconds such a session needs, whose first trial starts `cold_s` slower.
        """
        waits = self.wait(history)
        missing: list[str] = []
        for recipe in self._recipes:
            fresh = ConfirmationScheduler(
                self._candidates, self.rules
            )  # what left nothing for want of time is missing too
            recipe_words = f" of {recipe.label}" if len(self._recipes) > 1 else ""
            if runs := fresh._repeats_left(recipe, history):
                points = len({(run.point.layout.id, run.point.batch) for run in runs})
                missing.append(f"{plural(len(runs), 'run')} of {plural(points, 'finalist')}{recipe_words}")
            if open_ := unresolved(of_recipe(recipe, history.measurements)):
                missing.append(
                    f"further runs of {len(open_)} contenders{recipe_words}{self._rounds_words(recipe, history)}"
                )
                continue
            closing = fresh._winner_runs.next(recipe, history)
            if closing is None:
                continue
            run_s, gate_s = fresh._winner_runs.need_s(recipe, history, costs)
            seconds = RESERVE_MARGIN * gate_s + run_s
            duration_text = (
                f" (about {math.ceil((cold_s + seconds) / 10) * 10} s more)" if seconds and not waits else ""
            )
            if closing.rungs:
                best = winner(of_recipe(recipe, history.measurements))
                is_winner = best is not None and (best.layout, best.batch) == (closing.layout, closing.rungs[0])
                description = (
                    "the winner's last run"
                    if is_winner
                    else "the last run of a point that was faster than the winner's"
                )
                description += " with the numerics gate" if closing.gate else ""
            else:
                description = (
                    "the winner's numerics gate" if closing.is_winner_run else "the reference of the numerics gate"
                )
                description += " and the winner's last run" if run_s else ""
            missing.append(f"{description}{recipe_words}{duration_text}")
        return ", ".join(missing)

    def _rounds_words(self, recipe: Recipe, history: History) -> str:
        """Returns how long the contenders' rounds of all sessions took beside the search's trials; "" before the
        first.
        """
        spent_s = history.trials_s(recipe, range(self.rules.repeats + 2, sys.maxsize))
        searched = duration(history.trials_s(recipe, range(1)))
        return f" (those so far took {duration(spent_s)}, the search {searched})" if spent_s else ""

    def started(self, trial: ConfirmationTrial) -> None:
        """Marks `trial` as run: it is not returned again, whatever its outcome."""
        self._started[trial.key] = trial

    def allow_retry(self, trial_key: tuple[object, ...]) -> None:
        """Allows the trial to be returned again, after it died without a result or did not start."""
        self._started.pop(trial_key, None)

    def disqualified(self, history: History) -> list[Measurement]:
        """Returns a failed run for every point of a layout whose curves differ from the reference's, so that it cannot
        win.
        """
        disqualified: list[Measurement] = []
        for recipe in self._recipes:
            for layout in {gate.layout for gate in history.gates if gate.recipe == recipe}:
                verdict = gates.verdict_on(layout, recipe, history.gates)
                if verdict is None or verdict.passed:
                    continue
                able = [
                    point
                    for point in points(of_recipe(recipe, history.measurements))
                    if point.main_run.layout == layout
                ]
                disqualified += [
                    Measurement(
                        recipe=recipe,
                        layout=layout,
                        batch=point.main_run.batch,
                        outcome=Outcome.FAILED,
                        trial_id=point.main_run.trial_id,
                        repeat=point.decisive[-1].repeat + 1,
                        phase="gate",
                        reason=verdict.sentence,
                        cap_gib=point.main_run.cap_gib,
                    )
                    for point in able
                    if point.speeds
                ]
        return disqualified

    def _unprofiled(self, history: History) -> list[tuple[Recipe, Measurement]]:
        """Returns the winners whose profile is asked for and missing."""
        recipes = self._recipes if self.rules.profile else ()
        winners = [(recipe, named_winner(of_recipe(recipe, history.measurements))) for recipe in recipes]
        return [(recipe, best) for recipe, best in winners if best is not None and history.profile_of(best) is None]

    def _repeats_left(self, recipe: Recipe, history: History) -> list[ConfirmationRun]:
        rules = self.rules
        return repeats_left(
            of_recipe(recipe, history.measurements),
            repeats=rules.repeats,
            limit=rules.finalists,
            attempted=self._winner_runs.attempted_runs(recipe),
        )

    def _fits(
        self,
        runs: Sequence[ConfirmationRun],
        history: History,
        left_s: float,
        costs: ConfirmationCosts,
        *,
        for_new_winner: bool,
    ) -> bool:
        """Returns whether there is time for these runs of finalists and what follows them, including gates where they
        fit without the runs; with `for_new_winner`, all that another winner needs.
        """
        if math.isinf(left_s):
            return True
        profile_s = sum(costs.profile_s(best) for _, best in self._unprofiled(history))
        run_s, gate_s = self._needs_s(history, costs)
        gates_fit = run_s + GATE_MARGIN * gate_s + profile_s <= left_s
        run_s, gate_s = self._needs_s(history, costs, for_new_winner=(runs[0].point.recipe,) if for_new_winner else ())
        after_s = run_s + (RESERVE_MARGIN * gate_s + profile_s if gates_fit else 0.0)
        return left_s >= costs.cold_s + sum(costs.repeat_s(run.point) for run in runs) + after_s

    def _within(
        self, recipe: Recipe, history: History, left_s: float, costs: ConfirmationCosts
    ) -> ConfirmationTrial | None:
        """Returns the next closing trial of the recipe's winner for which there is time: a gate only together with its
        reference's, and after the time of other winners' last runs.
        """
        trial = self._winner_runs.next(recipe, history)
        if trial is None or math.isinf(left_s):
            return trial
        best = winner(of_recipe(recipe, history.measurements))
        assert best is not None, "nothing follows without a winner"
        run_s, gate_s = self._winner_runs.need_s(recipe, history, costs)
        if trial.gate:
            gates_left_s = left_s - (self._needs_s(history, costs)[0] - run_s)
            # Once the winner's curves are there, their time is spent: the reference runs where its estimate fits.
            margin = GATE_MARGIN if trial.is_winner_run else 1.0
            if gates_left_s < margin * gate_s + (run_s if trial.rungs else 0.0):
                only_gate = trial.rungs and not run_s  # nothing else asks for the run, which the gate's seconds hold
                trial = self._winner_runs.next(recipe, history, gated=False)
                if only_gate and gates_left_s >= GATE_MARGIN * (gate_s - costs.measuring_s(best)):
                    trial = self._winner_runs.next(recipe, history, run=False)
        if trial is None or (not trial.gate and left_s < run_s):
            return None
        reference_s = self._winner_runs.reference_s(best, history, costs) if trial.gate else 0.0
        return dataclasses.replace(trial, leave_s=costs.measuring_s(best) + GATE_MARGIN * reference_s)

    def _needs_s(
        self, history: History, costs: ConfirmationCosts, for_new_winner: Collection[Recipe] = ()
    ) -> tuple[float, float]:
        """Returns the sum of `Closing.need_s` over recipes; with `for_new_winner`, for another winner."""
        needs = [
            self._winner_runs.need_s(recipe, history, costs, for_new_winner=recipe in for_new_winner)
            for recipe in self._recipes
        ]
        return sum(run_s for run_s, _ in needs), sum(gate_s for _, gate_s in needs)


def _pair_of(runs: Sequence[ConfirmationRun], measured: Sequence[Measurement]) -> list[ConfirmationRun]:
    """Returns the next of the finalists' `runs`, and where it is the first of its round the one after it too: a run
    without another beside it compares nothing.
    """
    number = runs[0].repeat
    has_begun = any(measurement.repeat == number for measurement in measured)
    return [run for run in runs if run.repeat == number][: 1 if has_begun else 2]


def _trial_of(run: ConfirmationRun, *, contends: bool = False) -> ConfirmationTrial:
    point = run.point
    return ConfirmationTrial(
        recipe=point.recipe, layout=point.layout, rungs=(point.batch,), repeat=run.repeat, contends=contends
    )
