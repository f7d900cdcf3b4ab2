"""One trial after the search."""

import dataclasses

from trainers.records.job import GateSize
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationTrial:
    """One trial after the search."""

    recipe: Recipe
    layout: Layout
    rungs: tuple[BatchPoint, ...]
    """The one point to run; empty for a gate alone."""
    repeat: int = 0
    is_winner_run: bool = False
    """Whether it is the winner's last run, or, without rungs, the winner's gate; without rungs it is the reference's
    gate otherwise.
    """
    contends: bool = False
    """Whether it is a run of the contenders after a disturbed search; otherwise a finalist's."""
    gate: GateSize | None = None
    leave_s: float = 0.0
    """Seconds of a budget that must be left when its rung begins, for the rung and for the gate's reference."""
    profile: BatchPoint | None = None
    """The point to profile; then there are no rungs."""

    @property
    def key(self) -> tuple[str, str, tuple[BatchPoint, ...], int, BatchPoint | None]:
        """The key that identifies the trial among the final ones."""
        return self.recipe.id, self.layout.id, self.rungs, self.repeat, self.profile
