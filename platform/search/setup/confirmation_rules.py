"""The rules of confirmation: which runs follow the search."""

import dataclasses

from trainers.records.job import GateSize

FINALISTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationRules:
    repeats: int = 3
    """Runs of each finalist in separate processes."""
    finalists: int | None = FINALISTS
    """Number of points that run again; None for all that ran."""
    gate: GateSize | None = None
    """The numerics gate; None for none."""
    profile: bool = False
    """Whether the winner is profiled at the end, in a separate trial."""

    def num_trials(self, num_points: int) -> int:
        """Returns the most confirmation trials of a recipe with `num_points`, if its winner is not overtaken."""
        finalists = num_points if self.finalists is None else min(self.finalists, num_points)
        return self.repeats * finalists + 1 + bool(self.gate) + self.profile
