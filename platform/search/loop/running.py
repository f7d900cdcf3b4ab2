"""A trial in flight, with the trials beside it."""

import dataclasses

from trainers.records.job import Job
from trainers.records.journal import TrialStart


@dataclasses.dataclass(kw_only=True, slots=True)
class RunningTrial:
    job: Job
    start: TrialStart
    is_alone: bool
    """Whether nothing of its search may run beside it."""
    beside: set[str]
    """Ids of the trials that have run beside it so far."""
    sharing: set[str] = dataclasses.field(default_factory=set[str])
    """Ids of those among them that shared some of its nodes."""

    @property
    def is_exclusive(self) -> bool:
        """Whether nothing of other searches may either: it was crowded out of a host's memory before."""
        return self.is_alone and not self.start.is_final

    def meet(self, other: "RunningTrial", its_id: str, other_id: str) -> None:
        """Records that two trials run side by side; each id is the trial's in the other search's records."""
        other.beside.add(its_id)
        self.beside.add(other_id)
        if set(other.job.nodes) & set(self.job.nodes):
            other.sharing.add(its_id)
            self.sharing.add(other_id)
