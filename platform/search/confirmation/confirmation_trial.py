"""A trial after the search."""

import dataclasses

from search_spaces.candidate import Candidate
from trainers.records.job import GateSize
from trainers.records.search_state import SearchState
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationTrial:
    """A trial after the search."""

    state: SearchState
    """CONFIRMING, BREAKING_TIES, MEASURING_WINNER, GATING or PROFILING."""
    recipe: Recipe
    layout: Layout
    rungs: tuple[BatchPoint, ...] = ()
    """The one point to run; empty for a gate alone and for a profile."""
    repeat: int = 0
    """Number of the point's run. The winner's gate alone has that of its run at length, the reference's has 0."""
    gate: GateSize | None = None
    leave_s: float = 0.0
    """Seconds of a budget that must remain when the rung begins, for the rung and the reference's gate."""
    profile: BatchPoint | None = None
    """The point to profile."""

    @property
    def is_winner_run(self) -> bool:
        """Whether the trial is the winner's run at length, or the winner's gate without rungs."""
        return self.state is SearchState.MEASURING_WINNER or (self.state is SearchState.GATING and self.repeat > 0)

    @property
    def candidate(self) -> Candidate:
        """The layout with the micro-batch of its rung."""
        micro_batches = tuple(batch.micro_batch for batch in self.rungs)
        return Candidate(recipe=self.recipe, layout=self.layout, micro_batches=micro_batches)
