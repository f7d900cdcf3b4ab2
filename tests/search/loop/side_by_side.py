"""Plays several trials at a time; the clock moves to the next end of a trial."""

import dataclasses
import heapq
import random
from collections.abc import Callable

from platform.search.loop.loop import SearchLoop
from tests.search.loop.backend import Backend, Clock
from trainers.records.job import Job
from trainers.records.journal import TrialState


@dataclasses.dataclass
class Playing:
    """The trials in flight of a loop, by end time. A trial's lines are written at its end."""

    backend: Backend
    clock: Clock
    seconds: Callable[[Job], float]
    ends: list[tuple[float, int, Job]] = dataclasses.field(default_factory=list[tuple[float, int, Job]])
    begun: list[Job] = dataclasses.field(default_factory=list[Job])
    most: int = 0
    """Largest number of simultaneous trials."""

    def begin_all(self, loop: SearchLoop) -> None:
        """Starts all trials that the loop has to start now."""
        while (job := loop.next_job()) is not None:
            self.begun.append(job)
            heapq.heappush(self.ends, (self.clock.now_s + self.seconds(job), len(self.begun), job))
        self.most = max(self.most, len(self.ends))

    def end_one(self, loop: SearchLoop, **lost: object) -> tuple[Job, TrialState]:
        """Moves the clock to the next end of a trial, and ends the trial."""
        end_s, _, job = heapq.heappop(self.ends)
        now_s = self.clock.now_s
        state, reason = self.backend.begin(job)
        self.clock.now_s = max(now_s, end_s)
        loop.on_trial_end(job.trial_id, state=state, reason=reason, **lost)  # type: ignore[reportArgumentType]
        return job, state

    def run(self, loop: SearchLoop) -> list[Job]:
        """Runs the loop to its end."""
        self.begin_all(loop)
        while self.ends:
            self.end_one(loop)
            self.begin_all(loop)
        return self.begun


def of_random_length(chance: random.Random) -> Callable[[Job], float]:
    """Returns durations with which trials end in random order."""
    return lambda job: chance.uniform(5.0, 40.0)
