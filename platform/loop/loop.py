"""The search loop: which trial runs next, and what its end means. Knows neither Ray nor how a trial runs."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from platform.finals.costs import Costs
from platform.finals.course import Finals
from platform.finals.ranking import winner
from platform.finals.trial import FinalTrial
from platform.loop import policy
from platform.loop.budget import Budget, Spending
from platform.loop.jobs import Settings, given_up, make_job, outgrown
from platform.loop.policy import Kind, Next
from platform.searchers import Searcher
from platform.study.history import key_of
from platform.study.study import Study
from search_spaces.space import Candidate
from trainers.job import Job
from trainers.journal import Measured, TrialEnd, TrialStart, TrialState
from trainers.journal_lines import now
from trainers.layout import BatchPoint
from trainers.measurement import ENDS_LADDER, Measurement, Outcome


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
        shared_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spent_s` is what the session took before, `shared_s` what it had from those that were before it.

        Budgets count by `clock`, which nobody sets: the time of day may go back by hours.
        """
        self.study = study
        # All that the journal holds, this session's first line too: it settles what a killed session left open.
        self._tail, self.history = study.follow()
        history = self.history
        self.settings = settings
        self._clock = clock
        self.spending = Spending(budget, num_devices=settings.cluster.num_devices, spent_s=spent_s, clock=clock)
        self.why_ended = ""
        """Why no further trial runs; empty while the search goes on."""
        self.tried_all = False
        """Whether that is because the searcher has nothing more to try."""
        self._candidates = {candidate.key: candidate for candidate in candidates}
        self._searcher = searcher
        self._searched = 0
        """Trials of the search in this session."""
        self._running: tuple[Job, str] | None = None
        self._ends: list[policy.Ended] = []
        self._suspects: list[Measurement] = []
        """Given up since a trial last ran well: they are blamed once another one shows that the cluster works."""
        self._begin_s = spent_s + shared_s
        """Seconds that a session takes to its first trial, alone."""
        self._finals = Finals(candidates, settings.rules) if settings.rules else None
        self._reserve_s = 0.0
        """Seconds of a budget that the search leaves to the final runs."""
        self._finals_first = history.finals_begun or bool(history.left_out)
        """An earlier session was cut in or before its final runs: a winner comes before further candidates, but for
        those that final runs wait for."""
        self._asked: Candidate | None = None
        """What the searcher gave last."""
        self._unwritten: list[Measured] = []
        """Settled without a trial: `history` has them already, the journal gets them with the next line."""
        self.fault = ""
        """What is wrong with the cluster, where that ended the session."""
        for candidate in candidates:
            if not (searcher.whole_ladders and history.missing(candidate)):
                self._tell(candidate)

    @property
    def running(self) -> Job | None:
        """The trial in flight."""
        return self._running[0] if self._running else None

    def running_id(self) -> str | None:
        """The id of the trial in flight."""
        return self._running[0].trial_id if self._running else None

    @property
    def left_out(self) -> str:
        """What of the final runs is missing, "" for nothing, with about how many seconds a further session needs."""
        if self._finals is None:
            return ""
        first_s = self._begin_s + self.history.first_start_s - self.history.start_s  # nothing is warm then
        return self._finals.left_out(self.history, self._costs, first_s)

    @property
    def has_unwritten(self) -> bool:
        """Whether something was settled that the journal does not have yet."""
        return bool(self._unwritten)

    def next_job(self) -> Job | None:
        """The next trial, written to the journal as started; None when the search is over (`why_ended` says why)."""
        job = self.upcoming()
        self._write()
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
                repeat=job.repeat,
                profiles=job.profile,
            )
        )
        self._running = (job, key)
        self._searched += bool(job.rungs and not job.repeat)
        self.spending.begin(job.layout.world_size)
        return job

    def upcoming(self) -> Job | None:
        """What `next_job` gives; begins no trial and writes nothing. Hopeless rungs are settled as skipped, and points
        of a layout that failed its numerics gate, in this session or one that was cut right then, as failed.
        """
        self.refresh()
        self._settle(self._finals.barred(self.history) if self._finals else ())
        if self.fault:
            return None
        job = None
        if self._finals_first and not (self._finals and self._finals.wait(self.history)):
            job = self._final_job()
            self._finals_first = job is not None
        return job or self._search_job() or self._final_job() or self._profile_job()

    def ended(
        self,
        *,
        state: TrialState,
        reason: str,
        started: bool = True,
        rank: int | None = None,
        nodes: Sequence[str] = (),
        lost: Collection[str] = (),
    ) -> None:
        """Takes the end of the running trial, which ran on `nodes`, by rank; those that are `lost` answer no more.

        `state` is "interrupted" where time ran out before its ladder's end, "failed" where its process is gone: that of
        `rank`, if that is known. What follows is `policy`'s to say: without a verdict in the journal it was a
        silent death, and a trial whose workers never `started` stays to be run.
        """
        assert self._running is not None, "no trial is running"
        job, key = self._running
        self._running = None
        wall_s, gpu_s = self.spending.end()
        self.refresh()
        known = [m for m in self.history.measured(key, job.repeat) if m.trial_id == job.trial_id]
        verdict = next((m for m in known if m.outcome in ENDS_LADDER), None)
        outcome = verdict and verdict.outcome
        measures = bool(job.rungs) or job.is_last
        kind = policy.kind_of(state, outcome, started=started, lost=bool(lost), measures=measures)
        if state == "failed" and verdict is not None:
            # What follows a verdict, such as the end of its processes, is not the cause.
            reason, rank = verdict.reason, verdict.rank
        reason = reason or ("its workers did not start" if not started else "")
        node = next(iter(lost), "") or (nodes[rank] if rank is not None and rank < len(nodes) else "")
        self._ends.append(policy.Ended(key=(key, job.repeat), kind=kind, node=node, reason=reason))
        follows = policy.follows(self._ends)
        # Where its gate left no time for its rung, the reference comes next, and then it runs without a gate.
        cut_by_gate = state == "interrupted" and bool(job.gate and job.rungs) and not known
        if follows is Next.AGAIN or cut_by_gate:
            self._give_again(job)
        elif follows is Next.GIVEN_UP:
            self._give_up(job, known, reason)
        elif not kind.unexplained:
            self._blame_suspects()
        self.fault = policy.fault(self._ends)
        self.why_ended = self.fault or self.why_ended
        self._write()
        missing = follows is Next.AGAIN or state == "interrupted" or any(key_of(each) == key for each in self._suspects)
        self.study.record(
            TrialEnd(
                trial_id=job.trial_id,
                key=key,
                state="failed" if kind is Kind.UNSTARTED else "interrupted" if missing else "done",
                wall_s=wall_s,
                gpu_s=gpu_s,
                reason=reason,
                fault="" if kind is Kind.RAN else kind,
                node=node,
            )
        )
        self.refresh()
        if kind is Kind.UNSTARTED:
            return
        candidate, asked = self._candidates.get(key), self._asked
        if candidate is None or job.repeat or follows is Next.AGAIN or not job.rungs:
            return
        # Asked again, the searcher gives it again: the rungs between the last that ran and the first that did not.
        if state == "interrupted" or asked is None or asked.key != key or not self.history.missing(asked):
            self._tell(candidate)

    def refresh(self) -> None:
        """Reads what running trials have written since."""
        self.history.extend(self._tail.read())

    def _search_job(self) -> Job | None:
        whole_s = self.spending.whole_s
        if self._finals is not None and math.isfinite(whole_s):
            self._reserve_s = self._finals.reserve_s(self.history, self._costs, whole_s)
        if not self.why_ended:
            job = self._wanted_job()
            self.tried_all = job is None
            # Where nothing is left to try, that is why it ends, whatever a budget says.
            self.why_ended = (
                self.spending.why_over(trials=self._searched, trial_s=self.history.trial_s, reserve_s=self._reserve_s)
                if job
                else self._searcher.why_stopped
            )
            if not self.why_ended:
                return job
        self._blame_suspects()
        return None

    def _wanted_job(self) -> Job | None:
        """What the searcher wants next; once it has ended, the best layouts' rungs between; None for nothing."""
        while (candidate := self._searcher.suggest()) is not None:
            if not self._searcher.whole_ladders:
                candidate = dataclasses.replace(candidate, refine=False)
            missing = self.history.missing(candidate)
            if missing:
                self._asked = candidate
                return self._job(candidate, _points(candidate, missing))
            self._tell(candidate)
        self._blame_suspects()
        return self._refining_job()

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
                held = self._searcher.held_back(candidate)
                self._settle(outgrown(self._job(candidate, _points(candidate, held)), self.history, self.settings))
                known = self.history.measured(candidate.key)
                skipped = {each.batch.micro_batch for each in known if each.outcome is Outcome.SKIPPED}
                tried = {each.batch.micro_batch for each in known}.union(held) - skipped
                rungs = self.history.missing(dataclasses.replace(candidate, micro_batches=tuple(sorted(tried))))
                if rungs:
                    self._asked = None
                    return self._job(candidate, _points(candidate, rungs))
        return None

    def _final_job(self) -> Job | None:
        """The next trial after the search: a finalist's run, the winner's last one, the gate's reference."""
        if self._finals is None:
            return None
        trial = self._finals.next(self.history, self.spending.time_left_s(), self._costs)
        if trial is None:
            return None
        return self._job_of(trial)

    def _profile_job(self) -> Job | None:
        """The next winner's profile, where profiles are asked for: it comes after all else."""
        if self._finals is None or self.spending.time_left_s() <= self.history.trial_s:
            return None
        trial = self._finals.profile(self.history)
        return None if trial is None else self._job_of(trial)

    def _job_of(self, trial: FinalTrial) -> Job:
        assert self._finals is not None
        self._finals.given(trial)
        micro_batches = tuple(batch.micro_batch for batch in trial.rungs)
        candidate = Candidate(recipe=trial.recipe, layout=trial.layout, micro_batches=micro_batches)
        return self._job(candidate, trial.rungs, trial)

    def _give_again(self, job: Job) -> None:
        if self._finals is not None and (job.repeat or not job.rungs):
            given = FinalTrial(
                recipe=job.recipe, layout=job.layout, rungs=job.rungs, repeat=job.repeat, profile=job.profile
            )
            self._finals.again(given.key)

    def _job(self, candidate: Candidate, rungs: tuple[BatchPoint, ...], final: FinalTrial | None = None) -> Job:
        left_s = self.spending.time_left_s() - (final.leave_s if final else self._reserve_s)
        return make_job(
            candidate,
            rungs,
            final,
            history=self.history,
            settings=self.settings,
            stop_at_s=self._clock() + left_s if math.isfinite(left_s) else None,
        )

    @property
    def _costs(self) -> Costs:
        history = self.history
        return Costs(start_s=history.start_s, trial_s=history.trial_s, timing=self.settings.timing)

    def _give_up(self, job: Job, known: Sequence[Measurement], reason: str) -> None:
        """Blames the layout where the cluster is known to work; else once that is known."""
        done = {m.batch for m in known}
        batch = next((each for each in job.rungs if each not in done), None)
        if batch is None:
            return
        failed = given_up(job, batch, reason)
        if job.repeat:  # a final run: the point itself ran before
            self._settle([failed])
            return
        self._suspects.append(failed)
        candidate = self._candidates.get(key_of(failed))
        if candidate is not None:
            self._searcher.update(candidate, (*self.history.measured(candidate.key), failed))

    def _blame_suspects(self) -> None:
        self._settle(self._suspects)
        self._suspects.clear()

    def _settle(self, measurements: Iterable[Measurement]) -> None:
        """Takes in what follows from what was measured."""
        entries = [Measured(measurement=each, at=now()) for each in measurements]
        self.history.extend(entries)
        self._unwritten += entries

    def _write(self) -> None:
        for entry in self._unwritten:
            self.study.record(entry)
        self._unwritten.clear()
        self.refresh()


def _points(candidate: Candidate, rungs: Sequence[int]) -> tuple[BatchPoint, ...]:
    return tuple(BatchPoint.of(candidate.recipe, candidate.layout, each) for each in rungs)
