"""A trial in flight, with the trials beside it, and the lines of its start and end in the journal."""

import dataclasses
from collections.abc import Sequence

from platform.search.loop.policy import Ended, Kind
from trainers.records.job import Job
from trainers.records.journal import TrialEnd, TrialStart
from trainers.records.search_state import SearchState


def start_of(job: Job, state: SearchState, *, nodes: Sequence[str], beside: Sequence[str]) -> TrialStart:
    """Returns the line of a trial that starts on the nodes with these addresses, beside trials with these ids."""
    return TrialStart(
        trial_id=job.trial_id,
        key=f"{job.recipe.id}-{job.layout.id}",
        recipe=job.recipe,
        layout=job.layout,
        micro_batches=tuple(batch.micro_batch for batch in job.rungs),
        repeat=job.repeat,
        profiles=job.profile,
        state=state,
        nodes=tuple(nodes),
        beside=tuple(beside),
    )


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

    def end_line(self, end: Ended, *, is_missing: bool, wall_s: float, gpu_s: float) -> TrialEnd:
        """Returns the line of the trial's end; `is_missing` says that it has to run again."""
        return TrialEnd(
            trial_id=self.start.trial_id,
            key=self.start.key,
            state="failed" if end.kind is Kind.UNSTARTED else "interrupted" if is_missing else "done",
            wall_s=wall_s,
            gpu_s=gpu_s,
            reason=end.reason,
            fault="" if end.kind is Kind.RAN else end.kind,
            node=end.node,
            beside=tuple(sorted(self.beside)),
        )
