"""The search loop: which trial runs next, and what its end means. Knows neither Ray nor how a trial runs."""

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from platform.finals.course import Finals, FinalTrial
from platform.finals.ranking import winner
from platform.jobs import Settings, given_up, make_job
from platform.searchers import Searcher
from platform.study.history import key_of
from platform.study.study import Study
from search_spaces.space import Candidate
from trainers.job import Job
from trainers.journal import Measured, TrialEnd, TrialStart, TrialState
from trainers.layout import BatchPoint
from trainers.measurement import ENDS_LADDER, Measurement

MOST_ATTEMPTS = 2
"""Trials a candidate gets in a session when they die without a verdict; so does each final run."""
MOST_UNSTARTED = 3
"""Trials in a row whose workers never started, after which the cluster is at fault and the session ends."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """When a session ends by itself. None is without limit; a resumed study begins with a fresh one."""

    max_trials: int | None = None
    time_s: float | None = None
    gpu_s: float | None = None
    of_space: bool = False
    """Whether `time_s` is the space's own, not one that the user gave."""

    @property
    def time_words(self) -> str:
        """Where `time_s` comes from, in brackets."""
        return "(the space's own budget: --time-budget-s sets another)" if self.of_space else "(--time-budget-s)"


class Loop:
    """One session of a study, from its journal on. `next_job` and `ended` alternate; one trial runs at a time."""

    def __init__(
        self,
        *,
        study: Study,
        candidates: Sequence[Candidate],
        searcher: Searcher[Candidate],
        budget: Budget,
        settings: Settings,
        spent_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`spent_s` is what the session took before: Ray's start counts in a time budget as well."""
        self.study = study
        # All that the journal holds, this session's first line too: it settles what a killed session left open.
        self._tail, self.history = study.follow()
        history = self.history
        self.budget = budget
        self.settings = settings
        self.why_ended = ""
        """Why no further trial runs; empty while the search goes on."""
        self._candidates = {candidate.key: candidate for candidate in candidates}
        self._searcher = searcher
        self._clock = clock
        self._started_s = clock() - spent_s
        self._ended_gpu_s = 0.0
        self._trials_before = len(history.trials)
        self._running: tuple[Job, str, float] | None = None
        self._deaths: Counter[tuple[str, int]] = Counter()
        self._finals = Finals(candidates, settings.rules) if settings.rules else None
        self._unstarted = 0
        self._asked: Candidate | None = None
        """What the searcher gave last."""
        self.fault = ""
        """What is wrong with the cluster, where that ended the session."""
        self._start_s = 0.0
        for candidate in candidates:
            if not (searcher.whole_ladders and history.missing(candidate)):
                self._tell(candidate)

    @property
    def running(self) -> Job | None:
        """The trial in flight."""
        return self._running[0] if self._running else None

    @property
    def gpu_s(self) -> float:
        """Device seconds of this session, those of the running trial up to now."""
        running = self._running
        return self._ended_gpu_s + (_gpu_s(running[0], self._clock() - running[2]) if running else 0.0)

    def gpu_left_s(self) -> float:
        """Device seconds that the budget leaves, infinite without one."""
        return math.inf if self.budget.gpu_s is None else self.budget.gpu_s - self.gpu_s

    def time_left_s(self) -> float:
        """Seconds until a budget ends, infinite without one."""
        left = self.gpu_left_s() / self.settings.cluster.num_devices
        if self.budget.time_s is not None:
            left = min(left, self.budget.time_s - (self._clock() - self._started_s))
        return left

    def next_job(self) -> Job | None:
        """The next trial, written to the journal as started; None when the search is over (`why_ended` says why)."""
        self.refresh()
        if self.fault:
            return None
        job = self._search_job() or self._final_job()
        if job is None:
            return None
        key = f"{job.recipe.id}-{job.layout.id}"
        self.study.record(
            TrialStart(
                trial_id=job.trial_id,
                key=key,
                recipe=job.recipe,
                layout=job.layout,
                micro_batches=tuple(batch.micro_batch for batch in job.rungs),
            )
        )
        self._running = (job, key, self._clock())
        return job

    def ended(self, *, state: TrialState, reason: str, started: bool = True) -> None:
        """Takes the end of the running trial.

        `state` is "interrupted" where time ran out before its ladder's end, "failed" where its process is gone. Without
        a verdict in the journal that is a silent death. A trial whose workers never `started` says nothing of its
        layout: a node is gone or taken. It stays to be run.
        """
        assert self._running is not None, "no trial is running"
        job, key, started_s = self._running
        wall_s = self._clock() - started_s
        self._running = None
        self._ended_gpu_s += _gpu_s(job, wall_s)
        self.refresh()
        if not started:
            self._not_started(job, key, wall_s, reason)
            return
        self._unstarted = 0
        known = [m for m in self.history.measured(key, job.repeat) if m.trial_id == job.trial_id]
        verdict = next((m for m in known if m.outcome in ENDS_LADDER), None)
        silent = state == "failed" and verdict is None and bool(job.rungs)
        self._deaths[key, job.repeat] += silent
        if silent and self._deaths[key, job.repeat] >= MOST_ATTEMPTS:
            self._give_up(job, known, reason)
            silent = False
        elif silent:
            self._give_again(job)
        if state == "failed" and verdict is not None:
            reason = verdict.reason  # what follows a verdict, such as the end of its processes, is not the cause
        self.study.record(
            TrialEnd(
                trial_id=job.trial_id,
                key=key,
                state="interrupted" if silent or state == "interrupted" else "done",
                wall_s=wall_s,
                gpu_s=_gpu_s(job, wall_s),
                reason=reason,
            )
        )
        self.refresh()
        self._start_s = min(self._start_s, wall_s) if self._start_s else wall_s
        for measurement in self._finals.barred(self.history) if self._finals else ():
            self.study.record(Measured(measurement=measurement))
        self.refresh()
        candidate, asked = self._candidates.get(key), self._asked
        if candidate is None or job.repeat or silent or not job.rungs:
            return
        # Asked again, the searcher gives it again: the rungs between the last that ran and the first that did not.
        if state == "interrupted" or asked is None or asked.key != key or not self.history.missing(asked):
            self._tell(candidate)

    def _not_started(self, job: Job, key: str, wall_s: float, reason: str) -> None:
        reason = reason or "its workers did not start"
        self.study.record(
            TrialEnd(
                trial_id=job.trial_id,
                key=key,
                state="failed",
                wall_s=wall_s,
                gpu_s=_gpu_s(job, wall_s),
                reason=reason,
            )
        )
        self.refresh()
        self._give_again(job)
        self._unstarted += 1
        if self._unstarted >= MOST_UNSTARTED:
            self.fault = f"{self._unstarted} trials in a row did not start, the last one with: {reason}"
            self.why_ended = self.fault

    def refresh(self) -> None:
        """Reads what running trials have written since."""
        self.history.extend(self._tail.read())

    def _search_job(self) -> Job | None:
        if self.why_ended or self._spent():
            return None
        while (candidate := self._searcher.suggest()) is not None:
            if not self._searcher.whole_ladders:
                candidate = dataclasses.replace(candidate, refine=False)
            missing = self.history.missing(candidate)
            if missing:
                rungs = tuple(BatchPoint.of(candidate.recipe, candidate.layout, each) for each in missing)
                self._asked = candidate
                return self._job(candidate, rungs)
            self._tell(candidate)
        if (job := self._refining_job()) is not None:
            return job
        self.why_ended = self._searcher.why_stopped
        return None

    def _tell(self, candidate: Candidate) -> None:
        """Tells the searcher which rungs of the candidate are settled, and all that was measured of it."""
        missing = self.history.missing(candidate)
        settled = tuple(each for each in candidate.micro_batches if each not in missing)
        if settled:
            known = dataclasses.replace(candidate, micro_batches=settled)
            self._searcher.update(known, self.history.measured(candidate.key))

    def _refining_job(self) -> Job | None:
        """Once a searcher of single rungs has ended: the rungs between, for the best layout of each recipe."""
        if self._searcher.whole_ladders:
            return None
        for recipe in dict.fromkeys(candidate.recipe for candidate in self._candidates.values()):
            best = winner([m for m in self.history.measurements if m.recipe == recipe])
            candidate = self._candidates.get(key_of(best)) if best else None
            if candidate is not None:
                tried = tuple(sorted({m.batch.micro_batch for m in self.history.measured(candidate.key)}))
                rungs = self.history.missing(dataclasses.replace(candidate, micro_batches=tried))
                if rungs:
                    self._asked = None
                    return self._job(candidate, tuple(BatchPoint.of(recipe, candidate.layout, each) for each in rungs))
        return None

    def _final_job(self) -> Job | None:
        """The next trial after the search: a finalist's run, the winner's last one, the gate's reference."""
        if self._finals is None or self.time_left_s() <= self._start_s:
            return None
        trial = self._finals.next(self.history)
        if trial is None:
            return None
        self._finals.given(trial)
        micro_batches = tuple(batch.micro_batch for batch in trial.rungs)
        candidate = Candidate(recipe=trial.recipe, layout=trial.layout, micro_batches=micro_batches)
        return self._job(candidate, trial.rungs, trial)

    def _give_again(self, job: Job) -> None:
        if self._finals is not None and (job.repeat or not job.rungs):
            given = FinalTrial(recipe=job.recipe, layout=job.layout, rungs=job.rungs, repeat=job.repeat)
            self._finals.again(given.key)

    def _job(self, candidate: Candidate, rungs: tuple[BatchPoint, ...], final: FinalTrial | None = None) -> Job:
        left_s = self.time_left_s()
        return make_job(
            candidate,
            rungs,
            final,
            history=self.history,
            settings=self.settings,
            stop_at_unix_s=time.time() + left_s if math.isfinite(left_s) else None,
        )

    def _spent(self) -> bool:
        budget = self.budget
        if budget.max_trials is not None and len(self.history.trials) - self._trials_before >= budget.max_trials:
            self.why_ended = f"{budget.max_trials} trials were run (--max-trials)"
        elif self.gpu_left_s() <= 0:
            self.why_ended = f"{budget.gpu_s:g} device seconds are spent (--gpu-s)"
        elif self.time_left_s() <= 0:
            self.why_ended = f"{budget.time_s:g} s are over {budget.time_words}"
        elif self.time_left_s() < self._start_s + self._reserve_s():
            of = f" {budget.time_words}" if budget.of_space else ""
            after = " beside the final runs" if self._reserve_s() else ""
            left = f"the {self.time_left_s():.0f} s that are left of the budget{of}"
            self.why_ended = f"{left} are too short for a trial{after}"
        else:
            return False
        return True

    def _reserve_s(self) -> float:
        """Seconds of a budget kept for the final trials, a third of it at most; 0 where none would follow now."""
        whole_s = self.budget.time_s or math.inf
        if self.budget.gpu_s is not None:
            whole_s = min(whole_s, self.budget.gpu_s / self.settings.cluster.num_devices)
        if self._finals is None or math.isinf(whole_s) or self._finals.next(self.history) is None:
            return 0.0
        trials = self._finals.rules.num_trials(len(self.history.measurements))
        return min(trials * self._start_s + self.settings.timing.winner_s, whole_s / 3)

    def _give_up(self, job: Job, known: Sequence[Measurement], reason: str) -> None:
        done = {m.batch for m in known}
        batch = next((each for each in job.rungs if each not in done), job.rungs[-1])
        if batch not in done:
            self.study.record(Measured(measurement=given_up(job, batch, reason)))


def _gpu_s(job: Job, wall_s: float) -> float:
    return wall_s * job.layout.world_size
