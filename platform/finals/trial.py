"""One trial after the search, and the rules that call for it."""

import dataclasses

from platform.finals.schedule import FINALISTS
from trainers.values.batch import BatchPoint
from trainers.values.job import GateSize
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe


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
    """The one point to run; none for a gate alone."""
    repeat: int = 0
    is_winner_run: bool = False
    """Whether it is the winner's last run, or, without rungs, its gate; a gate is the reference's otherwise."""
    contends: bool = False
    """Whether it is a run of the contenders that a disturbed machine leaves level; a finalist's otherwise."""
    gate: GateSize | None = None
    leave_s: float = 0.0
    """Seconds of a budget that must be left when its rung begins: for the rung, and for the gate's reference."""
    profile: BatchPoint | None = None
    """The point to profile; then there are no rungs."""

    @property
    def key(self) -> tuple[str, str, tuple[BatchPoint, ...], int, BatchPoint | None]:
        """What tells it from the others."""
        return self.recipe.id, self.layout.id, self.rungs, self.repeat, self.profile
