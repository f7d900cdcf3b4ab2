"""The course of the final trials: the finalists' runs, the winner's last with its gate, then the gate's reference."""

import dataclasses
import math
from collections.abc import Sequence

import platform.finals.gate as gates  # pyright takes `from platform import` for the standard module
from platform.finals.costs import UNLIMITED, Costs
from platform.finals.ranking import by_speed, points, ranked, winner
from platform.finals.schedule import FINALISTS, Run, Tried, last_run, repeats_left
from platform.reports.text import plural
from platform.study.history import History
from search_spaces.space import Candidate
from trainers.job import GateSize
from trainers.layout import BatchPoint, Layout
from trainers.measurement import Measurement, Outcome
from trainers.recipe import Recipe

MOST_REFERENCES = 3
"""Layouts tried as the numerics gate's reference before a winner goes without one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a winner has to go through."""

    repeats: int = 3
    """Runs that each finalist has in processes of its own."""
    finalists: int | None = FINALISTS
    """Points that have them; None for all that ran."""
    gate: GateSize | None = None
    """The numerics gate; None for none."""
    profile: bool = False
    """Whether the winner is profiled at the end, in a trial of its own."""

    def num_trials(self, num_points: int) -> int:
        """Trials that a recipe with so many points has at most after its search, where no winner is overtaken."""
        finalists = num_points if self.finalists is None else min(self.finalists, num_points)
        return self.repeats * finalists + 1 + bool(self.gate) + self.profile


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FinalTrial:
    """One trial after the search."""

    recipe: Recipe
    layout: Layout
    rungs: tuple[BatchPoint, ...]
    """The one point to run; none for the reference of the gate."""
    repeat: int = 0
    is_last: bool = False
    gate: GateSize | None = None
    leave_s: float = 0.0
    """Seconds of a budget that must be left when its rung begins: for the rung, and for the gate's reference."""
    profile: BatchPoint | None = None
    """The point to profile; then there are no rungs."""

    @property
    def key(self) -> tuple[str, str, tuple[BatchPoint, ...], int, BatchPoint | None]:
        """What tells it from the others."""
        return self.recipe.id, self.layout.id, self.rungs, self.repeat, self.profile


class Finals:
    """Gives the final trials of a study one after another. What it goes by is the journal's; it remembers only which
    trials of this session left nothing, so as not to give them for ever."""

    def __init__(self, candidates: Sequence[Candidate], rules: Rules) -> None:
        self.rules = rules
        self._candidates = candidates
        self._recipes = tuple(dict.fromkeys(candidate.recipe for candidate in candidates))
        self._given: dict[tuple[object, ...], FinalTrial] = {}

    def next(self, history: History, left_s: float = math.inf, costs: Costs = UNLIMITED) -> FinalTrial | None:
        """The next trial, None when there is none. Gives the same again until `given` is told.

        A winner without its gate is none: a finalist is run again only where `left_s` are enough for that and for what
        the winners have to go through after it.
        """
        for recipe in self._recipes:
            runs = self._repeats_left(recipe, history)
            if runs and (math.isinf(left_s) or left_s >= costs.trial_s + self._after_s(recipe, history, costs)):
                run, point = runs[0], runs[0].point
                return FinalTrial(recipe=recipe, layout=point.layout, rungs=(point.batch,), repeat=run.repeat)
            if (trial := self._closing(recipe, history, costs)) is not None:
                return trial
        return None

    def profile(self, history: History) -> FinalTrial | None:
        """The profile of the first winner that has none, where profiles are asked for: what to run once `next` gives
        nothing more. Finalists' runs for which there was no time do not keep it back.
        """
        for recipe, best in self._unprofiled(history):
            trial = FinalTrial(recipe=recipe, layout=best.layout, rungs=(), profile=best.batch)
            if trial.key not in self._given:
                return trial
        return None

    def reserve_s(self, history: History, costs: Costs, whole_s: float) -> float:
        """Seconds of a budget of `whole_s` that a search leaves to the final trials that would follow now.

        All that the winners have to go through, and their profile where it is asked for, up to half of the budget; with
        the finalists' runs, up to a third.
        """
        closing_s = self._closing_s(history, costs) + costs.trial_s * len(self._unprofiled(history))
        runs_s = costs.trial_s * sum(len(self._repeats_left(recipe, history)) for recipe in self._recipes)
        return max(min(closing_s, whole_s / 2), min(closing_s + runs_s, whole_s / 3))

    def left_out(self, history: History) -> str:
        """What of the final trials is missing, "" for nothing: a session that goes on begins with it."""
        found: list[str] = []
        for recipe in self._recipes:
            anew = Finals(self._candidates, self.rules)  # what left nothing for want of time is missing too
            of = f" of {recipe.label}" if len(self._recipes) > 1 else ""
            if runs := anew._repeats_left(recipe, history):
                points = len({(run.point.layout.id, run.point.batch) for run in runs})
                found.append(f"{plural(len(runs), 'run')} of {plural(points, 'finalist')}{of}")
            closing = anew._closing(recipe, history, UNLIMITED)
            if closing is not None and not closing.rungs:
                found.append(f"the reference of the numerics gate{of}")
            elif closing is not None:
                found.append(f"the winner's last run{' with the numerics gate' if closing.gate else ''}{of}")
        return ", ".join(found)

    def given(self, trial: FinalTrial) -> None:
        """`trial` is run: it is not given again, whatever it leaves."""
        self._given[trial.key] = trial

    def again(self, trial_key: tuple[object, ...]) -> None:
        """The trial died without a word, or did not start: it may be given again."""
        self._given.pop(trial_key, None)

    def barred(self, history: History) -> list[Measurement]:
        """A failed run for every point of a layout whose curves are not the reference's: it cannot win."""
        found: list[Measurement] = []
        for recipe in self._recipes:
            for layout in {each.layout for each in history.gates if each.recipe == recipe}:
                verdict = gates.verdict_on(layout, recipe, history.gates)
                if verdict is None or verdict.passed:
                    continue
                able = [point for point in points(_of(recipe, history)) if point.shown.layout == layout]
                found += [
                    Measurement(
                        recipe=recipe,
                        layout=layout,
                        batch=point.shown.batch,
                        outcome=Outcome.FAILED,
                        trial_id=point.shown.trial_id,
                        repeat=point.decisive[-1].repeat + 1,
                        phase="gate",
                        reason=verdict.sentence,
                        cap_gib=point.shown.cap_gib,
                    )
                    for point in able
                    if point.speeds
                ]
        return found

    def _unprofiled(self, history: History) -> list[tuple[Recipe, Measurement]]:
        """Winners whose profile is asked for and missing."""
        winners = [(recipe, winner(_of(recipe, history))) for recipe in self._recipes if self.rules.profile]
        return [(recipe, best) for recipe, best in winners if best is not None and history.profile_of(best) is None]

    def _tried(self, recipe: Recipe) -> Tried:
        trials = [trial for trial in self._given.values() if trial.recipe == recipe and trial.rungs]
        return frozenset((trial.layout.id, trial.rungs[0], trial.repeat) for trial in trials)

    def _repeats_left(self, recipe: Recipe, history: History) -> list[Run]:
        rules = self.rules
        return repeats_left(
            _of(recipe, history), repeats=rules.repeats, most=rules.finalists, tried=self._tried(recipe)
        )

    def _closing(self, recipe: Recipe, history: History, costs: Costs) -> FinalTrial | None:
        """What the recipe's winner still has to go through: its last run with its gate, then the gate's reference.

        Without repeats no other point has been run again: where the last run puts the winner behind the search's figure
        of another one, that one has its last run too.
        """
        measured = _of(recipe, history)
        best = winner(measured)
        if best is None:
            return None
        if _curves(best, history) and (layout := self._reference(best, history)) is not None:
            return FinalTrial(recipe=recipe, layout=layout, rungs=(), gate=self.rules.gate)
        for point in [*ranked(measured)[:1], *(by_speed(measured)[:1] if not self.rules.repeats else ())]:
            run = last_run(point, repeats=self.rules.repeats, tried=self._tried(recipe))
            if run is not None and self._last_wanted(point.shown, history):
                wanted = self._gate_wanted(point.shown, history)
                return FinalTrial(
                    recipe=recipe,
                    layout=run.point.layout,
                    rungs=(run.point.batch,),
                    repeat=run.repeat,
                    is_last=True,
                    gate=self.rules.gate if wanted else None,
                    leave_s=costs.measuring_s(point.shown) + self._reference_s(best, history, costs) if wanted else 0.0,
                )
        return None

    def _after_s(self, recipe: Recipe, history: History, costs: Costs) -> float:
        """Estimated seconds of what follows a run of one of the recipe's finalists: profiles too."""
        return self._closing_s(history, costs, anew=recipe) + costs.trial_s * len(self._unprofiled(history))

    def _closing_s(self, history: History, costs: Costs, anew: Recipe | None = None) -> float:
        """Estimated seconds of what the winners still have to go through; a winner of recipe `anew` all of it again,
        since another one may take its place.
        """
        seconds = 0.0
        for recipe in self._recipes:
            best = winner(_of(recipe, history))
            if best is None:
                continue
            trial = self._closing(recipe, history, costs)
            is_last = (trial is not None and trial.is_last) or (recipe == anew and self._last_wanted(best, history))
            gate = self.rules.gate if recipe == anew else trial and trial.is_last and trial.gate
            seconds += costs.trial_s + costs.measuring_s(best) if is_last else 0.0
            seconds += costs.gate_s(gate, best, of=best) if gate else 0.0
            seconds += self._reference_s(best, history, costs) if gate or (trial and not trial.rungs) else 0.0
        return seconds

    def _reference_s(self, best: Measurement, history: History, costs: Costs) -> float:
        """Estimated seconds of the reference's gate, 0 where none is to run."""
        layout = self._reference(best, history)
        if self.rules.gate is None or layout is None:
            return 0.0
        ran = ranked(each for each in _of(best.recipe, history) if each.layout == layout)
        return costs.trial_s + costs.gate_s(self.rules.gate, best, of=ran[0].shown if ran else None)

    def _last_wanted(self, best: Measurement, history: History) -> bool:
        """Whether a winner is run once more: to time what was derived, or to hold it against the reference."""
        return self.rules.repeats > 0 or best.step_time_derived or self._gate_wanted(best, history)

    def _gate_wanted(self, best: Measurement, history: History) -> bool:
        """Whether the winner's curves are still to be taken. A layout that is itself the plainest needs none."""
        if self.rules.gate is None or _curves(best, history):
            return False
        order = gates.references(best.recipe, self._candidates, history.measurements)
        return bool(order) and order[0] != best.layout

    def _reference(self, best: Measurement, history: History) -> Layout | None:
        """The layout whose gate is still to run for the winner's to be held against; None where there is none."""
        gate, recipe = self.rules.gate, best.recipe
        ran = {
            (each.steps, each.sequences)
            for each in history.gates
            if each.recipe == recipe and each.is_reference and each.layout != best.layout
        }
        if gate is None or (gate.steps, gate.sequences) in ran:
            return None
        tried = {
            trial.layout for trial in self._given.values() if trial.recipe == recipe and trial.gate and not trial.rungs
        }
        order = gates.references(recipe, self._candidates, history.measurements)
        left = [layout for layout in order if layout not in tried and layout != best.layout]
        return left[0] if left and len(tried) < MOST_REFERENCES else None


def _curves(best: Measurement, history: History) -> bool:
    return any(
        each.recipe == best.recipe and each.layout == best.layout and not each.is_reference for each in history.gates
    )


def _of(recipe: Recipe, history: History) -> list[Measurement]:
    return [each for each in history.measurements if each.recipe == recipe]
