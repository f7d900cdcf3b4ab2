"""Figures over a study's measurements that the search reads before every trial, updated with each line."""

import copy
import dataclasses
import math
from collections import Counter, defaultdict

from trainers.records.journal import TrialEnd
from trainers.records.measurement import TIMED, Measurement, Outcome


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongestRung:
    """The rung of a trial whose steps took longest."""

    seconds: float
    """Seconds of all its steps, warm-up included."""
    tokens: int
    """Tokens of one of its timed steps."""


class Tally:
    """Counts the timed layouts of each recipe, and how long trials took."""

    def __init__(self) -> None:
        self.steps_s: dict[str, tuple[float, LongestRung]] = {}
        """By trial with measurements: seconds of all rungs' steps, and the longest rung."""
        self._wall_s: dict[str, float] = {}
        self._times: dict[str, tuple[float, LongestRung]] = {}
        self._timed: defaultdict[str, set[str]] = defaultdict(set)
        """Ids of timed layouts, by recipe id."""
        self._fastest: dict[str, Measurement] = {}
        """The fastest `ok` measurement, by recipe id."""
        self._run_again: set[str] = set()
        """Ids of recipes with a confirmation run."""

    def copy(self) -> "Tally":
        """Returns a copy that further lines do not change."""
        other = copy.copy(self)
        other.steps_s, other._wall_s, other._times = dict(self.steps_s), dict(self._wall_s), dict(self._times)
        other._timed = defaultdict(set, {key: set(items) for key, items in self._timed.items()})
        other._fastest, other._run_again = dict(self._fastest), set(self._run_again)
        return other

    def measured(self, measurement: Measurement) -> None:
        recipe, speed = measurement.recipe.id, measurement.tokens_per_s
        if measurement.repeat:
            self._run_again.add(recipe)
        if measurement.outcome in TIMED:
            self._timed[recipe].add(measurement.layout.id)
        if speed is None:
            return
        best = self._fastest.get(recipe)
        is_ok = measurement.outcome is Outcome.OK and math.isfinite(speed)
        if is_ok and (best is None or speed > (best.tokens_per_s or 0.0)):
            self._fastest[recipe] = measurement
        rung = LongestRung(seconds=sum(measurement.step_times_s), tokens=measurement.tokens_per_timed_step)
        all_s, longest = self.steps_s.get(measurement.trial_id, (0.0, rung))
        longest = max(longest, rung, key=lambda timed_rung: timed_rung.seconds)
        self.steps_s[measurement.trial_id] = all_s + rung.seconds, longest
        self._time(measurement.trial_id)

    def ended(self, end: TrialEnd) -> None:
        """Adds a trial's end; a later end of the same trial replaces it."""
        self._wall_s[end.trial_id] = end.wall_s
        self._time(end.trial_id)

    def _time(self, trial_id: str) -> None:
        if trial_id in self._wall_s and trial_id in self.steps_s:
            all_s, longest = self.steps_s[trial_id]
            self._times[trial_id] = max(0.0, self._wall_s[trial_id] - all_s), longest

    @property
    def times_s(self) -> list[tuple[float, LongestRung]]:
        """Seconds beyond the steps, and the longest rung, of each completed trial with measurements."""
        return list(self._times.values())

    @property
    def num_timed(self) -> Counter[str]:
        return Counter({recipe: len(layouts) for recipe, layouts in self._timed.items()})

    def fastest(self, recipe_id: str) -> Measurement | None:
        """Returns the fastest `ok` measurement of a recipe; None if there is none or the recipe has confirmation runs,
        after which the highest figure no longer decides.
        """
        return None if recipe_id in self._run_again else self._fastest.get(recipe_id)
