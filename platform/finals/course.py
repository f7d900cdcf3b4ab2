"""The course of the final trials: the finalists' runs, the winner's last with its gate, then the gate's reference."""

import dataclasses
from collections.abc import Sequence

import platform.finals.gate as gates  # pyright takes `from platform import` for the standard module
from platform.finals.ranking import points, winner
from platform.finals.schedule import FINALISTS, Run, next_run
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

    def num_trials(self, num_points: int) -> int:
        """Trials that a recipe with so many points has at most after its search, where no winner is overtaken."""
        finalists = num_points if self.finalists is None else min(self.finalists, num_points)
        return self.repeats * finalists + 1 + bool(self.gate)


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

    @property
    def key(self) -> tuple[str, str, tuple[BatchPoint, ...], int]:
        """What tells it from the others."""
        return self.recipe.id, self.layout.id, self.rungs, self.repeat


class Finals:
    """Gives the final trials of a study one after another. What it goes by is the journal's; it remembers only which
    trials of this session left nothing, so as not to give them for ever."""

    def __init__(self, candidates: Sequence[Candidate], rules: Rules) -> None:
        self.rules = rules
        self._candidates = candidates
        self._recipes = tuple(dict.fromkeys(candidate.recipe for candidate in candidates))
        self._given: dict[tuple[object, ...], FinalTrial] = {}

    def next(self, history: History) -> FinalTrial | None:
        """The next trial, None when there is none. Gives the same again until `given` is told."""
        for recipe in self._recipes:
            measured = _of(recipe, history)
            tried = frozenset((trial.layout.id, trial.rungs[0], trial.repeat) for trial in self._tried(recipe))
            run = next_run(
                measured,
                repeats=self.rules.repeats,
                most=self.rules.finalists,
                last_wanted=lambda best: self._last_wanted(best, history),
                tried=tried,
            )
            trial = self._reference(recipe, history) if run is None else self._of_run(run, history)
            if trial is not None:
                return trial
        return None

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

    def _tried(self, recipe: Recipe) -> list[FinalTrial]:
        return [trial for trial in self._given.values() if trial.recipe == recipe and trial.rungs]

    def _last_wanted(self, best: Measurement, history: History) -> bool:
        """Whether a winner is run once more: to time what was derived, or to hold it against the reference."""
        return self.rules.repeats > 0 or best.step_time_derived or self._gate_wanted(best, history)

    def _gate_wanted(self, best: Measurement, history: History) -> bool:
        """Whether the winner's curves are still to be taken. A layout that is itself the plainest needs none."""
        if self.rules.gate is None or _curves(best, history):
            return False
        order = gates.references(best.recipe, self._candidates, history.measurements)
        return bool(order) and order[0] != best.layout

    def _of_run(self, run: Run, history: History) -> FinalTrial:
        point = run.point
        wanted = run.is_last and self._gate_wanted(point, history)
        return FinalTrial(
            recipe=point.recipe,
            layout=point.layout,
            rungs=(point.batch,),
            repeat=run.repeat,
            is_last=run.is_last,
            gate=self.rules.gate if wanted else None,
        )

    def _reference(self, recipe: Recipe, history: History) -> FinalTrial | None:
        """The reference's gate, where the winner has run its own and there is nothing to hold it against."""
        best = winner(_of(recipe, history))
        if self.rules.gate is None or best is None or not _curves(best, history):
            return None
        if gates.verdict_on(best.layout, recipe, history.gates):
            return None
        tried = {trial.layout for trial in self._given.values() if trial.recipe == recipe and not trial.rungs}
        order = gates.references(recipe, self._candidates, history.measurements)
        left = [layout for layout in order if layout not in tried and layout != best.layout]
        if not left or len(tried) >= MOST_REFERENCES:
            return None
        return FinalTrial(recipe=recipe, layout=left[0], rungs=(), gate=self.rules.gate)


def _curves(best: Measurement, history: History) -> bool:
    return any(
        each.recipe == best.recipe and each.layout == best.layout and not each.is_reference for each in history.gates
    )


def _of(recipe: Recipe, history: History) -> list[Measurement]:
    return [each for each in history.measurements if each.recipe == recipe]
