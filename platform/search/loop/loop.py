"""The search loop: which trial runs next, and what its end means. It knows neither Ray nor how a trial runs."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence

from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.scheduler import ConfirmationScheduler
from platform.search.loop import policy
from platform.search.loop.budget import Budget, Spending
from platform.search.loop.exploration import Exploration, Relearn, Work
from platform.search.loop.jobs import TrialSettings, failed_measurement, make_job
from platform.search.loop.phase import Decision, SearchEnd, SessionPhase, phase_of
from platform.search.loop.policy import Kind, Next
from platform.search.loop.study_log import StudyLog
from platform.search.loop.time_plan import TimePlan
from platform.search.loop.trial_time import least_trial_s
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.forecast import NO_FORECAST, Forecast
from platform.searchers import Searcher
from platform.study.history import History
from platform.study.study import Study
from search_spaces.candidate import Candidate
from trainers.records.job import Job
from trainers.records.journal import TrialEnd, TrialStart, TrialState
from trainers.records.measurement import ENDS_LADDER, Measurement
from trainers.spec.batch import BatchPoint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    """The trial in flight."""

    job: Job
    key: str
    """The candidate's key."""
    final: ConfirmationTrial | None
    """None for a trial of the search."""


class SearchLoop:
    """One session of a study, from its journal on. `next_job` and `on_trial_end` alternate: one trial at a time."""

    def __init__(
        self,
        *,
        study: Study,
        candidates: Sequence[Candidate],
        searcher: Searcher[Candidate],
        budget: Budget,
        settings: TrialSettings,
        forecast: Forecast = NO_FORECAST,
        clock: Callable[[], float] = time.monotonic,
        relearn: Relearn | None = None,
    ) -> None:
        """Begins to count budgets, by the monotonic `clock`: the time of day may be set back by hours. `relearn` makes
        a new searcher once the first trial has measured devices and links.
        """
        self.study = study
        self.settings = settings
        self.spending = Spending(budget, num_devices=settings.cluster.num_devices, clock=clock)
        self.phase = SessionPhase.SEARCHING
        """The last decision's phase."""
        self.fault = ""
        """The cluster's fault that ended the session."""
        # All that the journal holds, this session's first line too: it settles what a killed session left open.
        self._log = StudyLog(study)
        self._search = Exploration(searcher, candidates, self._log, settings, relearn)
        self._search_end: SearchEnd | None = None
        """None while the search goes on."""
        self._confirmation = (
            ConfirmationScheduler(candidates, settings.rules, forecast.winners)
            if settings.rules
            else ConfirmationScheduler((), ConfirmationRules())
        )
        self._time = TimePlan(self.spending, self._confirmation, candidates, settings.timing, forecast)
        self._resumes_finals = self.history.ends_in_finals or bool(self.history.left_out)
        """Whether the last session ended in its final runs, or one left them out: then a winner is settled before
        further candidates are tried, except those that final runs wait for, where the session has time for it.
        """
        self._reserves_for_new_winner = True
        """Whether time is kept for all final runs of another winner, which the next trial may make: not in a session
        that would then run nothing, as would each further one of its budget.
        """
        self._running: _Running | None = None
        self._ends: list[policy.Ended] = []

    @property
    def history(self) -> History:
        """The study's history."""
        return self._log.history

    @property
    def ended_reason(self) -> str:
        """Reason why the search runs no further trial; "" while it continues."""
        return self.fault or (self._search_end.reason if self._search_end else "")

    @property
    def tried_all(self) -> bool:
        """Whether the search ended because the searcher has nothing more to try."""
        return self._search_end is not None and self._search_end.tried_all

    @property
    def running(self) -> Job | None:
        """The trial in flight."""
        return self._running.job if self._running else None

    def running_id(self) -> str | None:
        """Returns the id of the trial in flight."""
        running = self._running
        return running.job.trial_id if running else None

    @property
    def left_out(self) -> str:
        """The final runs that are missing, with about how many seconds a further session needs; "" for none, and where
        a fault ended the search, which then goes on before any of them.
        """
        if self.fault and self._search_end is None:
            return ""
        return self._confirmation.left_out(self.history, self._costs, self._cold_s)

    @property
    def time_sentence(self) -> str:
        """Sentence on what the session's budget allows, before its first trial; "" where nothing is known of it."""
        return self._time.sentence(self.history)

    @property
    def has_unwritten(self) -> bool:
        """Whether something settled is not yet in the journal."""
        return self._log.has_unwritten

    def next_job(self) -> Job | None:
        """Returns the next trial, recorded as started; None when the session is over (`ended_reason` states why)."""
        decision = self.decide()
        job = decision.job
        if job is None:
            self._log.write()
            return None
        key = f"{job.recipe.id}-{job.layout.id}"
        self._log.record(
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
        self._running = _Running(job=job, key=key, final=decision.final)
        self.spending.begin(job.layout.world_size, searches=decision.phase is SessionPhase.SEARCHING)
        return job

    def decide(self) -> Decision:
        """Returns the next decision without beginning a trial or writing anything. Rungs without hope are settled as
        skipped, and points of a layout that failed its numerics gate, in this session or one that was cut right then,
        as failed.
        """
        self._log.refresh()
        self._log.record_outcomes(self._confirmation.disqualified(self.history))
        decision = self._decision()
        self.phase = decision.phase
        return decision

    def _decision(self) -> Decision:
        if self.fault:
            return Decision(phase=SessionPhase.FAULTED)
        if self._resumes_finals and self._may_begin_finals():
            if decision := self._final_decision():
                return decision
            self._resumes_finals = False
        decision = self._search_decision() or self._final_decision() or self._profile_decision()
        if decision is None and self._reserves_for_new_winner and not self._ends:
            self._reserves_for_new_winner, self._search_end = False, None
            return self._decision()
        return decision or Decision(phase=SessionPhase.ENDED)

    def _may_begin_finals(self) -> bool:
        """Returns whether final runs may come before further candidates now: these wait for none, and the session has
        time for them.
        """
        if self._time.lacks_comparison(self.history) or self._confirmation.wait(self.history):
            return False
        return self._time.holds_closing(self.history, begins=not self._ends)

    def _search_decision(self) -> Decision | None:
        """Returns the next trial of the search; None once it is over."""
        if self._search_end is None:
            reserve_s = self._reserve_s()
            work, self._search_end = self._next_work(reserve_s)
            self.spending.keep(reserve_s if work else 0.0)
            if work is not None:
                recipe = work[0].recipe
                runs_one = not self._time.is_compared(recipe, self.history)
                leave_s = self._time.leave_s(recipe, self.history, reserve_s)
                return Decision(phase=SessionPhase.SEARCHING, job=self._job(*work, leave_s=leave_s, runs_one=runs_one))
            self._search.blame_suspects()
        return None

    def _next_work(self, reserve_s: float) -> tuple[Work | None, SearchEnd | None]:
        """Returns what the search runs next, or why it ends. A lack of work counts before any budget.

        Where trials are not equally long, one that is too long for what is left of a budget is passed over for a
        shorter one.
        """
        history, timing = self.history, self.settings.timing
        # Skipping is final in this run, so nothing is skipped while the reserve for another winner may be released.
        is_settled = bool(self._ends) or not (self._reserves_for_new_winner and history.finals_begun)
        while (work := self._search.next()) is not None:
            kept_s = reserve_s if self._time.is_compared(work[0].recipe, history) else 0.0
            reason = self.spending.over_reason(trial_s=least_trial_s(*work, history, timing), reserve_s=kept_s)
            if not reason:
                return work, None
            has_time = not self.spending.over_reason(trial_s=history.start_s, reserve_s=kept_s)
            if not (is_settled and has_time and timing.fixes_steps):
                return None, SearchEnd(reason=reason, tried_all=False)
            self._search.pass_over(work[0])
        if self._search.has_passed_over:
            reason = self.spending.over_reason(trial_s=math.inf, reserve_s=reserve_s)
            return None, SearchEnd(reason=reason, tried_all=False)
        return None, SearchEnd(reason=self._search.stopped_reason, tried_all=True)

    def _reserve_s(self) -> float:
        """Returns the seconds of a budget that the search reserves for the final runs."""
        return self._time.reserve_s(self.history, begins=not self._ends, for_new_winner=self._reserves_for_new_winner)

    def _final_decision(self) -> Decision | None:
        """Returns the next trial after the search: a finalist's or contender's run, the winner's last one, or a
        gate.
        """
        left_s = self.spending.time_left_s()
        return self._decision_on(
            self._confirmation.next(self.history, left_s, self._costs, for_new_winner=self._reserves_for_new_winner)
        )

    def _profile_decision(self) -> Decision | None:
        """Returns the next winner's profiling trial where profiles are asked for; it comes last."""
        return self._decision_on(self._confirmation.profile(self.history, self.spending.time_left_s(), self._costs))

    def _decision_on(self, trial: ConfirmationTrial | None) -> Decision | None:
        if trial is None:
            return None
        self._confirmation.started(trial)
        micro_batches = tuple(batch.micro_batch for batch in trial.rungs)
        candidate = Candidate(recipe=trial.recipe, layout=trial.layout, micro_batches=micro_batches)
        job = self._job(candidate, trial.rungs, trial, leave_s=trial.leave_s)
        return Decision(phase=phase_of(trial), job=job, final=trial)

    def _job(
        self,
        candidate: Candidate,
        rungs: tuple[BatchPoint, ...],
        final: ConfirmationTrial | None = None,
        *,
        leave_s: float,
        runs_one: bool = False,
    ) -> Job:
        return make_job(
            candidate,
            rungs,
            final,
            history=self.history,
            settings=self.settings,
            stop_at_s=self.spending.stop_at_s(leave_s),
            runs_one=runs_one,
        )

    @property
    def _cold_s(self) -> float:
        """Seconds that a session's first trial takes beyond others' to start."""
        return self.history.first_start_s - self.history.start_s

    @property
    def _costs(self) -> ConfirmationCosts:
        return self._time.costs(self.history, begins=not self._ends)

    def on_trial_end(
        self,
        *,
        state: TrialState,
        reason: str,
        started: bool = True,
        rank: int | None = None,
        nodes: Sequence[str] = (),
        lost_nodes: Collection[str] = (),
    ) -> None:
        """Handles the end of the running trial, which ran on `nodes`, by rank; those in `lost_nodes` no longer answer.

        `state` is "interrupted" if time ran out before the end of its ladder, and "failed" if a process is gone, that
        of `rank` if known. `policy` decides what follows: without a verdict in the journal it was a silent death, and a
        trial whose workers never `started` still has to run.
        """
        assert self._running is not None, "no trial is running"
        running, self._running = self._running, None
        job, key = running.job, running.key
        wall_s, gpu_s = self.spending.end()
        self._log.refresh()
        trial_measurements = [m for m in self.history.measured(key, job.repeat) if m.trial_id == job.trial_id]
        end = policy.end_of(
            (key, job.repeat),
            next((m for m in trial_measurements if m.outcome in ENDS_LADDER), None),
            state=state,
            reason=reason,
            started=started,
            measures=bool(job.rungs) or job.is_winner_run,
            rank=rank,
            nodes=nodes,
            lost_nodes=lost_nodes,
        )
        self._ends.append(end)
        follows = policy.follows(self._ends)
        # Where its gate left no time for its rung, the reference comes next, and then it runs without a gate.
        cut_by_gate = state == "interrupted" and bool(job.gate and job.rungs) and not trial_measurements
        if running.final is not None and (follows is Next.RETRY or cut_by_gate):
            self._confirmation.allow_retry(running.final.key)
        if follows is Next.GIVEN_UP:
            self._give_up(running, trial_measurements, end.reason)
        elif not end.kind.unexplained:
            self._search.blame_suspects()
        self.fault = policy.fault(self._ends)
        missing = follows is Next.RETRY or state == "interrupted" or self._search.is_suspect(key)
        self._record_end(running, end, missing=missing, wall_s=wall_s, gpu_s=gpu_s)
        if running.final is None and follows is not Next.RETRY:
            self._search.trial_ended(key, interrupted=state == "interrupted")

    def _record_end(self, running: _Running, end: policy.Ended, *, missing: bool, wall_s: float, gpu_s: float) -> None:
        """Records the end of a trial that leaves the rungs `missing`."""
        line = TrialEnd(
            trial_id=running.job.trial_id,
            key=running.key,
            state="failed" if end.kind is Kind.UNSTARTED else "interrupted" if missing else "done",
            wall_s=wall_s,
            gpu_s=gpu_s,
            reason=end.reason,
            fault="" if end.kind is Kind.RAN else end.kind,
            node=end.node,
        )
        self._log.record(line)
        self._log.refresh()

    def _give_up(self, running: _Running, trial_measurements: Sequence[Measurement], reason: str) -> None:
        """Marks the layout as failed where the cluster is known to work, else once that is known."""
        measured_batches = {m.batch for m in trial_measurements}
        batch = next((rung for rung in running.job.rungs if rung not in measured_batches), None)
        if batch is None:
            return
        failed = failed_measurement(running.job, batch, reason)
        if running.final is None:
            self._search.suspect(failed)
        else:  # the point itself ran before
            self._log.record_outcomes([failed])
