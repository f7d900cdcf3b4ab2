"""The confirmation after a search: finalists run again, ties are broken, the winner runs at length and is gated."""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from platform.common.text import duration, plural
from platform.search.confirmation.attempted import attempted_trials
from platform.search.confirmation.confirmation_costs import UNLIMITED, ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.recipe_confirmation import RecipeConfirmation
from platform.search.confirmation.run_order import ConfirmationRun
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.result import gate as gates
from platform.study.result.float8_price import compared
from platform.study.result.ranking import points
from search_spaces.candidate import Candidate
from trainers.records.journal import TrialStart
from trainers.records.measurement import Measurement, Outcome
from trainers.records.search_state import SearchState

GATE_MARGIN = 1.1
"""Time required before a gate, as a multiple of its estimate. A gate cannot be cut short, and the winner's curves are
useless without the reference's.
"""
RESERVE_MARGIN = 1.2
"""Time that other trials reserve for a gate, as a multiple of its estimate; the trial before may be slow."""
MOST_OF_RUNS = 1 / 3
"""Share of a budget up to which a search also reserves time for the finalists' runs."""


class ConfirmationPlan:
    """The candidates that a session may confirm, and the rules; without rules, none."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        rules: ConfirmationRules | None,
        expected: Mapping[str, Measurement] | None = None,
        *,
        since: int | None = None,
    ) -> None:
        """`expected` holds the winners by recipe id that were predicted before any measurement. Trials with numbers
        above `since` belong to this session; None if it has none yet.
        """
        self.candidates, self.rules = candidates if rules else (), rules or ConfirmationRules()
        self.expected, self.since = expected or {}, since
        self.num_layouts = Counter(candidate.recipe for candidate in candidates)
        self.recipes = tuple(self.num_layouts) if rules else ()
        self.compared = compared(set(self.recipes))

    def at(self, history: History) -> "Confirmation":
        """Returns the confirmation that is left to do."""
        return Confirmation(self, history)


class Confirmation:
    """The confirmation that is left to do for a study, by its history at one moment."""

    def __init__(self, plan: ConfirmationPlan, history: History) -> None:
        self.plan, self.rules, self.history = plan, plan.rules, history
        self._new_finals = () if plan.since is None else history.finals_since(plan.since)
        self._attempted = attempted_trials(self._new_finals, history)
        self._running = [trial for trial in self._new_finals if not history.trial_end(trial.trial_id)]
        self._recipes = self._of_each(self._attempted)

    def _of_each(self, attempted: Sequence[TrialStart]) -> list[RecipeConfirmation]:
        """Returns each recipe's remaining confirmation without repeating the `attempted` trials."""
        plan = self.plan
        return [
            RecipeConfirmation(
                recipe,
                self.history.of_recipe(recipe.id),
                self.history,
                candidates=plan.candidates,
                rules=plan.rules,
                attempted=[trial for trial in attempted if trial.recipe == recipe],
                running=[trial for trial in self._running if trial.recipe == recipe],
                expected=plan.expected.get(recipe.id),
                is_compared=recipe in plan.compared,
            )
            for recipe in plan.recipes
        ]

    @property
    def num_timed(self) -> Counter[str]:
        return self.history.tally.num_timed

    def next(
        self, left_s: float = math.inf, costs: ConfirmationCosts = UNLIMITED, *, for_new_winner: bool = True
    ) -> ConfirmationTrial | None:
        """Returns the next confirmation trial, None when there is none.

        For each recipe in turn: a point without head-room that was faster than the winner, with its allocator held; a
        finalist's run; the contenders' runs while it is open which point is the fastest; the winner's run at length
        with its gate; the gate's reference. The first two run only if `left_s` holds that run and the winners'
        trials after it; `for_new_winner`, all trials of another winner. The first run of a round compares nothing
        alone: without time for a second one it comes after all else. So do pairs of finalists' runs that leave no
        time for another winner. The winner's run has its gate if `left_s` holds the reference's too.

        While final runs are under way, it is one that may run beside them: of another round of finalists or contenders,
        of another recipe, or the gate's reference.
        """
        for recipe in self._recipes:
            held = None if recipe.is_running else recipe.held
            # Run at the winner's length: only long windows show whether a point that fills the memory can run like
            # this.
            if held and self._holds(recipe, costs.run_s(held.point), left_s, costs, for_new_winner=for_new_winner):
                return held.trial(SearchState.CONFIRMING)
            runs = recipe.next_repeats()
            if runs and self._holds(recipe, _repeats_s(runs, costs), left_s, costs, for_new_winner=for_new_winner):
                return runs[0].trial(SearchState.CONFIRMING)
            trial = None
            # While ties are open, no point's run at length and gate are known to be worth their time.
            if recipe.unresolved and (recipe.breaks_ties or not recipe.is_running):
                trial = recipe.tie_break(left_s, costs, {trial.trial_id for trial in self._new_finals})
            elif recipe.is_running:
                trial = self._reference_beside(recipe, left_s, costs)
            else:
                trial = self._closing_trial(recipe, left_s, costs)
            if trial is not None:
                return trial
        # Nothing else fits, so pairs of runs need not leave time for another winner's run at length.
        for recipe in self._recipes:
            for runs, is_kept in ((recipe.next_repeats(), False), (recipe.free_repeats[:1], for_new_winner)):
                if runs and self._holds(recipe, _repeats_s(runs, costs), left_s, costs, for_new_winner=is_kept):
                    return runs[0].trial(SearchState.CONFIRMING)
        return None

    def profile(self, left_s: float = math.inf, costs: ConfirmationCosts = UNLIMITED) -> ConfirmationTrial | None:
        """Returns the profiling trial of the first winner without a profile, if profiles are requested and `left_s`
        holds it.

        It waits for the winner's gate, even one that was tried and left nothing, because a layout that fails its gate
        is no winner. Finalists' runs do not delay it.
        """
        others = [trial for trial in self._attempted if not (trial.is_gate and trial.repeat)]
        for recipe, ungated in zip(self._recipes, self._of_each(others), strict=True):
            best = recipe.unprofiled
            if best is None or left_s <= costs.profile_s(best):
                continue
            closing = ungated.closing_trial()
            was_tried = any((trial.layout, trial.profiles) == (best.layout, best.batch) for trial in self._attempted)
            if not was_tried and not (closing and closing.gate):
                state = SearchState.PROFILING
                return ConfirmationTrial(state=state, recipe=recipe.recipe, layout=best.layout, profile=best.batch)
        return None

    def expected_s(self, trial: ConfirmationTrial, costs: ConfirmationCosts) -> float:
        """Returns the seconds that a confirmation trial is expected to take."""
        recipe = next(recipe for recipe in self._recipes if recipe.recipe == trial.recipe)
        point = next((m for m in recipe.measured if m.layout == trial.layout and m.batch in trial.rungs), recipe.best)
        if point is None:
            return 0.0
        if trial.profile is not None:
            return costs.profile_s(point)
        if not trial.rungs and not trial.is_winner_run:
            return recipe.reference_s(point, costs)
        gate_s = costs.winner_gate_s(trial.gate, point) if trial.gate else 0.0
        if not trial.rungs:
            return costs.ready_s(point) + gate_s
        return (costs.run_s(point) if trial.is_winner_run else costs.repeat_s(point)) + gate_s

    def reserve_s(
        self, costs: ConfirmationCosts, free_s: float, whole_s: float, *, for_new_winner: bool = True
    ) -> float:
        """Returns the seconds to reserve for the confirmation trials that would follow now.

        The search can leave `free_s` of its budget `whole_s`. With `for_new_winner`, and once confirmation has begun,
        all trials of another winner are counted.

        The reserve covers the winners' trials with requested profiles; only the runs at length if there is no time for
        gates; nothing if there is no time for these either, because a part of them is useless. With the finalists' runs
        it is at most a third of the budget. Nothing is reserved while nothing is known of a recipe.
        """
        if self._waits(self.plan.expected):
            return 0.0
        run_s, gate_s, profile_s = self.closing_s(costs, for_new_winner=for_new_winner)
        if run_s + GATE_MARGIN * gate_s + profile_s <= free_s:
            closing_s = run_s + RESERVE_MARGIN * gate_s + profile_s
        elif run_s <= free_s:
            closing_s = run_s
        else:
            return 0.0  # finalists' runs do not begin either
        finalists = [run.point for recipe in self._recipes for run in recipe.repeats_left]
        num_runs = self.rules.repeats * (self.rules.finalists or 1)
        finalists += [best for best in self._only_expected for _ in range(num_runs)]
        return max(closing_s, min(closing_s + sum(map(costs.repeat_s, finalists)), MOST_OF_RUNS * whole_s))

    def closing_s(self, costs: ConfirmationCosts, *, for_new_winner: bool = True) -> tuple[float, float, float]:
        """Returns the estimated seconds of the winners' remaining runs at length, of their gates, and of their
        profiles.

        `for_new_winner` is as in `reserve_s`.
        """
        new_winners = self._recipes if for_new_winner and self.history.finals_begun else ()
        run_s, gate_s = self._need_s(costs, new_winners)
        expected_s = sum(map(costs.profile_s, self._only_expected)) if self.rules.profile else 0.0
        return run_s, gate_s, self._profiles_s(costs) + expected_s

    def _profiles_s(self, costs: ConfirmationCosts) -> float:
        return sum(costs.profile_s(recipe.unprofiled) for recipe in self._recipes if recipe.unprofiled)

    @property
    def _only_expected(self) -> list[Measurement]:
        """The expected winners of recipes without a measured one."""
        return [recipe.expected for recipe in self._recipes if recipe.expected and not recipe.best]

    @property
    def waits(self) -> bool:
        """Whether the search continues before any confirmation: until each recipe was tried, because a first result of
        each is worth more than a confirmed one, and until every point was tried if all are requested.
        """
        return self._waits()

    def _waits(self, predicted: Collection[str] = ()) -> bool:
        """Returns `waits` as if the recipes with the ids `predicted` had been tried."""
        every_point, history = self.rules.finalists is None, self.history
        tried = {m.recipe.id for m in history.measurements if m.outcome is not Outcome.SKIPPED}.union(predicted)
        return any(
            (every_point or candidate.recipe.id not in tried) and history.missing(candidate)
            for candidate in self.plan.candidates
        )

    def left_out(self, costs: ConfirmationCosts = UNLIMITED, cold_s: float = 0.0) -> str:
        """Returns text on the missing confirmation trials, including those that left nothing; "" if there are none.

        With `costs`, it adds about how many seconds a session needs for them. The session's first trial starts `cold_s`
        slower.
        """
        words = [part for recipe in self._of_each(()) for part in self._left_out_of(recipe, costs, cold_s)]
        return ", ".join(words)

    def _left_out_of(self, recipe: RecipeConfirmation, costs: ConfirmationCosts, cold_s: float) -> list[str]:
        of_recipe = f" of {recipe.recipe.label}" if len(self._recipes) > 1 else ""
        parts: list[str] = []
        if runs := recipe.repeats_left:
            finalists = len({(run.point.layout.id, run.point.batch) for run in runs})
            parts.append(f"{plural(len(runs), 'run')} of {plural(finalists, 'finalist')}{of_recipe}")
        if recipe.unresolved:
            took = f" (those so far took {duration(recipe.tie_breaks_s)}, the search {duration(recipe.searched_s)})"
            took = took if recipe.tie_breaks_s else ""
            return [*parts, f"further runs of {len(recipe.unresolved)} contenders{of_recipe}{took}"]
        closing = recipe.closing_trial()
        if closing is None:
            return parts
        run_s, gate_s = recipe.need_s(costs)
        seconds = RESERVE_MARGIN * gate_s + run_s
        more = f" (about {math.ceil((cold_s + seconds) / 10) * 10} s more)" if seconds and not self.waits else ""
        return [*parts, f"{_words_of(closing, recipe, has_run=run_s > 0)}{of_recipe}{more}"]

    def disqualified(self) -> list[Measurement]:
        """Returns a failed run for each point of the layouts that failed their gate, so that these cannot win."""
        return [
            Measurement(
                recipe=recipe.recipe,
                layout=layout,
                batch=point.main_run.batch,
                outcome=Outcome.FAILED,
                trial_id=point.main_run.trial_id,
                repeat=point.decisive[-1].repeat + 1,
                phase="gate",
                reason=verdict.sentence,
                cap_gib=point.main_run.cap_gib,
            )
            for recipe in self._recipes
            for layout in {curves.layout for curves in self.history.gates if curves.recipe == recipe.recipe}
            if (verdict := gates.verdict_on(layout, recipe.recipe, self.history.gates)) and not verdict.passed
            for point in points(recipe.measured)
            if point.speeds and point.main_run.layout == layout
        ]

    def _holds(
        self,
        recipe: RecipeConfirmation,
        runs_s: float,
        left_s: float,
        costs: ConfirmationCosts,
        *,
        for_new_winner: bool,
    ) -> bool:
        """Returns whether `left_s` holds `runs_s` seconds of this recipe's points and the trials after them.

        Gates are included if they would fit without the runs. `for_new_winner` counts all trials of another winner.
        """
        if math.isinf(left_s):
            return True
        profiles_s = self._profiles_s(costs)
        run_s, gate_s = self._need_s(costs)
        gates_fit = run_s + GATE_MARGIN * gate_s + profiles_s <= left_s
        run_s, gate_s = self._need_s(costs, [recipe] if for_new_winner else ())
        after_s = run_s + (RESERVE_MARGIN * gate_s + profiles_s if gates_fit else 0.0)
        return left_s >= costs.cold_s + runs_s + after_s

    def _closing_trial(
        self, recipe: RecipeConfirmation, left_s: float, costs: ConfirmationCosts
    ) -> ConfirmationTrial | None:
        """Returns the winner's next trial that the time holds.

        A gate needs time for its reference too, and for the other winners' runs at length.
        """
        trial = recipe.closing_trial()
        if trial is None or math.isinf(left_s):
            return trial
        best = recipe.best
        assert best is not None, "nothing follows without a winner"
        left_s -= costs.cold_s
        run_s, gate_s = recipe.need_s(costs)
        if trial.gate:
            gates_left_s = left_s - (self._need_s(costs)[0] - run_s)
            # The winner's curves are paid for once they exist, so the reference then runs if its plain estimate fits.
            margin = GATE_MARGIN if trial.is_winner_run else 1.0
            if gates_left_s < margin * gate_s + (run_s if trial.rungs else 0.0):
                only_gate = trial.rungs and not run_s  # only the gate asks for this run
                trial = recipe.closing_trial(gated=False)
                if only_gate and gates_left_s >= GATE_MARGIN * (gate_s - costs.measuring_s(best)):
                    trial = recipe.closing_trial(run=False)
        if trial is None or (not trial.gate and left_s < run_s):
            return None
        reference_s = recipe.reference_s(best, costs) if trial.gate else 0.0
        return dataclasses.replace(trial, leave_s=costs.measuring_s(best) + GATE_MARGIN * reference_s)

    def _reference_beside(
        self, recipe: RecipeConfirmation, left_s: float, costs: ConfirmationCosts
    ) -> ConfirmationTrial | None:
        """Returns the reference's gate, which may run beside a point's run, if the time also holds the winner's."""
        run_s, gate_s = self._need_s(costs)
        return recipe.reference_trial() if math.isinf(left_s) or run_s + GATE_MARGIN * gate_s <= left_s else None

    def _need_s(
        self, costs: ConfirmationCosts, new_winners: Collection[RecipeConfirmation] = ()
    ) -> tuple[float, float]:
        """Returns the sum of `need_s` over recipes, for another winner in recipes of `new_winners`."""
        needs = [recipe.need_s(costs, for_new_winner=recipe in new_winners) for recipe in self._recipes]
        return sum(run_s for run_s, _ in needs), sum(gate_s for _, gate_s in needs)


def _repeats_s(runs: Sequence[ConfirmationRun], costs: ConfirmationCosts) -> float:
    return sum(costs.repeat_s(run.point) for run in runs)


def _words_of(closing: ConfirmationTrial, recipe: RecipeConfirmation, *, has_run: bool) -> str:
    """Returns text on a winner's next trial; `has_run` is whether the winner still has to run at length."""
    if not closing.rungs:
        alone = "the winner's numerics gate" if closing.is_winner_run else "the reference of the numerics gate"
        return f"{alone} and the winner's last run" if has_run else alone
    best = recipe.best
    is_winner = best is not None and (best.layout, best.batch) == (closing.layout, closing.rungs[0])
    run = "the winner's last run" if is_winner else "the last run of a point that was faster than the winner's"
    return f"{run} with the numerics gate" if closing.gate else run
