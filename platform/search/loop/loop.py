"""The search loop: chooses the next trial and handles its end. It knows neither Ray nor how a trial runs."""

import dataclasses
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from platform.search.confirmation.confirmation import ConfirmationPlan
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.loop import policy
from platform.search.loop.budget import Budget, Spending
from platform.search.loop.exploration import Exploration, Relearn, SearchEnd
from platform.search.loop.jobs import TrialSettings, failed_measurement, make_job
from platform.search.loop.lanes import Lanes
from platform.search.loop.node_watch import NodeWatch, nodes_of_round
from platform.search.loop.policy import Kind, Next
from platform.search.loop.running import RunningTrial, start_of
from platform.search.loop.study_log import StudyLog
from platform.search.loop.time_plan import TimePlan
from platform.search.loop.transitions import Answers, Decision, ExplorationTrial, Trial, decide, resumed
from platform.search.setup.forecast import NO_FORECAST, Forecast
from platform.searchers import Searcher
from platform.study.history import History
from platform.study.study import Study
from search_spaces.candidate import Candidate
from trainers.records.job import Job
from trainers.records.journal import Lagging, TrialStart, TrialState
from trainers.records.measurement import ENDS_LADDER, Measurement
from trainers.records.search_state import SearchState


class SearchLoop:
    """One session of a study, starting from its journal.

    `next_job` begins trials until it returns None; `on_trial_end` ends each of them.
    """

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
        lanes: Lanes | None = None,
    ) -> None:
        """Starts counting budgets by the monotonic `clock`, because the time of day may be set back.

        `relearn` makes a new searcher after the first trial has measured devices and links. `lanes` are the places for
        trials side by side; None for one trial at a time.
        """
        self.study, self.settings = study, settings
        self.spending = Spending(budget, num_devices=settings.cluster.num_devices, clock=clock)
        self.fault = ""
        """The cluster's fault that ended the session."""
        # Replays the whole journal. This session's first line closes trials that a killed session left open.
        self._log = StudyLog(study)
        self.state = resumed(self.history.state)
        """State of the last decision; before the first, the state in which the session begins."""
        self._search = Exploration(searcher, candidates, self._log, settings, relearn)
        self._search_end: SearchEnd | None = None
        """None while the search continues."""
        self._since = self.history.last_trial_number
        """Number of the last trial before this session."""
        self._confirmation = ConfirmationPlan(candidates, settings.rules, forecast.winners, since=self._since)
        self._forecast = forecast
        self._reserves_for_new_winner = True
        """Whether time is reserved to confirm a new winner; off if that would leave the session nothing to run."""
        self.lanes = lanes or Lanes()
        self._running: dict[str, RunningTrial] = {}
        """The trials in flight, by id."""
        self._waits = False
        """Whether the next decision waits for the end of a trial, of this search or of one beside it."""
        self.beside: tuple[SearchLoop, ...] = ()
        """The other searches that share the cluster."""
        self._ends: list[policy.Ended] = []
        """The ends of this session's trials, in order."""
        self._crowded: set[str] = set()
        """Keys of candidates whose trials ran out of host memory beside others."""
        self._nodes = NodeWatch(self.history, self.lanes, settings)

    @property
    def history(self) -> History:
        return self._log.history

    @property
    def ended_reason(self) -> str:
        """Why the search runs no further trial; "" while it continues."""
        return self.fault or (self._search_end.reason if self._search_end else "")

    @property
    def tried_all(self) -> bool:
        """Whether the search ended because the searcher has nothing more to try."""
        return self._search_end is not None and self._search_end.tried_all

    @property
    def running(self) -> dict[str, Job]:
        """The trials in flight, by id."""
        return {trial_id: trial.job for trial_id, trial in self._running.copy().items()}

    @property
    def num_lanes(self) -> int:
        """Number of trials that may run side by side now."""
        return max(1, self.lanes.count(avoid=self.history.lagging) or self.lanes.count())

    @property
    def wants_room(self) -> bool:
        """Whether a trial waits for room while none of the search's own trials runs."""
        return self._waits and not self._running

    def neighbours(self, trial_id: str, *, on_its_nodes: bool = False) -> frozenset[str]:
        """Returns the ids of the trials that have run beside a running one so far, including other searches' trials.

        With `on_its_nodes`, only of those that shared its nodes.
        """
        trial = self._running[trial_id]
        return frozenset(trial.sharing if on_its_nodes else trial.beside)

    @property
    def left_out(self) -> str:
        """The missing confirmation trials with the seconds that a further session needs; "" if none is missing.

        Also "" after a fault, because the search then continues before any confirmation.
        """
        if self.fault and self._search_end is None:
            return ""
        time_plan = self._time_plan()
        return time_plan.confirmation.left_out(time_plan.costs, self.history.first_start_s - self.history.start_s)

    @property
    def time_sentence(self) -> str:
        """Sentence before the first trial on what the session's budget allows; "" if unknown."""
        return self._time_plan(for_new_winner=False).sentence

    @property
    def has_unwritten(self) -> bool:
        """Whether a settled result is not yet in the journal."""
        return self._log.has_unwritten

    def next_job(self) -> Job | None:
        """Returns the next trial, recorded as started; None if none may begin now.

        None without running trials means that the session is over; `ended_reason` states why.
        """
        running, others, before = self.running, self._others(), self.state
        alone = any(trial.is_alone for trial in self._running.values())
        alone |= any(trial.is_exclusive for loop in self.beside for trial in loop._running.values())
        if self._waits or self.state.is_terminal or alone:
            return None
        place = functools.partial(
            self.lanes.place, running.values(), self._nodes.failing, slow=self.history.lagging,
            others=others.values() if self.beside else None,
        )  # fmt: skip
        if (running or not others) and place() is None:
            return None
        decision = self.decide()
        self._waits, trial = decision.waits, decision.trial
        if trial is None:
            if not running:
                self._log.write()
            return None
        if isinstance(trial, ConfirmationTrial):
            nodes, is_alone = place(is_alone=True, at=nodes_of_round(trial, self.history)), False
        else:
            is_alone = trial.is_alone
            nodes = None if is_alone and others else place(is_alone=trial.takes_whole_nodes)
        if nodes is None:
            self.state, self._waits = before, bool(running or others)
            return None
        job = self._job(trial, nodes)
        start = start_of(job, self.state, nodes=tuple(nodes.values()), beside=(*running, *others))
        self._log.record(start)
        self._begin(job, start, is_alone=is_alone)
        if isinstance(trial, ExplorationTrial):
            self._search.begin(trial)
        expected_s = self._time_plan().expected_s(trial) if isinstance(trial, ConfirmationTrial) else 0.0
        self.spending.begin(job.trial_id, job.layout.world_size, searches=not start.is_final, expected_s=expected_s)
        return job

    def _begin(self, job: Job, start: TrialStart, *, is_alone: bool) -> None:
        """Records a trial and the trials that run beside it, in this search and in others."""
        trial = RunningTrial(job=job, start=start, is_alone=is_alone, beside=set())
        for loop in (self, *self.beside):
            for other in loop._running.values():
                trial.meet(other, self.id_in(loop, job), loop.id_in(self, other.job))
        self._running[job.trial_id] = trial

    def id_in(self, other: "SearchLoop", job: Job) -> str:
        """Returns a trial's id in another search's records, or its own."""
        return job.trial_id if other is self else f"{self.study.name}:{job.trial_id}"

    def _others(self) -> dict[str, Job]:
        """Returns the running trials of other searches, by their ids in this search's records."""
        return {loop.id_in(self, job): job for loop in self.beside for job in loop.running.values()}

    def decide(self) -> Decision:
        """Returns the next decision without beginning a trial or writing.

        Hopeless rungs are settled as skipped. Points of a layout that failed its numerics gate, in this session or one
        cut short then, are settled as failed.
        """
        self._log.refresh()
        self._log.record_outcomes(self._confirmation.at(self.history).disqualified())
        decision = self._decision()
        if decision.state is SearchState.DONE and self._reserves_for_new_winner and not self._ends:
            self._reserves_for_new_winner = False
            decision = self._decision()
        self.state = decision.state
        return decision

    def _decision(self) -> Decision:
        time_plan = self._time_plan()
        reserves, spending = self._reserves_for_new_winner, self.spending
        may_pass_over = bool(self._ends) or not (reserves and self.history.finals_begun)

        @functools.cache
        def explore() -> ExplorationTrial | None:
            nonlocal time_plan
            trial, end = self._search.next_in_time(time_plan, spending, may_pass_over=may_pass_over)
            if self._running and trial is None:
                return None  # a running trial may leave more to try when it ends
            self._search_end = end
            spending.keep(time_plan.reserve_s if trial else 0.0)
            if trial is None:
                self._search.blame_suspects()
                time_plan = self._time_plan()  # a layout just marked as failed is no longer a reference
            elif trial.candidate.key in self._crowded:
                trial = dataclasses.replace(trial, is_alone=True)
            return trial

        answers = Answers(
            is_faulted=bool(self.fault),
            may_confirm=lambda: time_plan.may_confirm,
            exploration=explore,
            confirmation=lambda: time_plan.confirmation_trial,
            profile=lambda: time_plan.profile,
            is_running=bool(self._running),
            is_final_running=any(trial.start.is_final for trial in self._running.values()),
        )
        return decide(self.state, answers)

    def _time_plan(self, *, for_new_winner: bool | None = None) -> TimePlan:
        return TimePlan(
            self.spending,
            self._confirmation.at(self.history),
            self.settings.timing,
            self._forecast,
            begins=not self._ends and not self._running,
            for_new_winner=self._reserves_for_new_winner if for_new_winner is None else for_new_winner,
            running=Counter(trial.candidate.recipe.id for trial in self._search.running),
        )

    def _job(self, trial: Trial, nodes: Mapping[str, str]) -> Job:
        is_final = isinstance(trial, ConfirmationTrial)
        num_lanes = 1 if is_final or trial.is_alone else self.num_lanes
        # The trial's share of the device seconds may be used up before its first rung, although there was time at its
        # start.
        shares_budget = num_lanes > 1 and math.isfinite(self.spending.gpu_left_s())
        return make_job(
            trial.candidate,
            trial.rungs,
            trial if is_final else None,
            history=self.history,
            settings=self.settings,
            stop_at_s=self.spending.stop_at_s(trial.leave_s, num_lanes),
            runs_one=not is_final and (trial.runs_one or shares_budget),
            nodes=nodes,
            node_share=1.0 if not nodes or is_final or trial.takes_whole_nodes else self.lanes.share,
            probes=all(running.job.probe_s is None for running in self._running.values()),
            measures_peak=bool(self._nodes.suspected(self.history) & set(nodes.values())),
        )

    def on_trial_end(
        self,
        trial_id: str,
        *,
        state: TrialState,
        reason: str,
        started: bool = True,
        rank: int | None = None,
        nodes: Sequence[str] = (),
        lost_nodes: Collection[str] = (),
        is_crowded: bool = False,
        is_starved: bool = False,
    ) -> None:
        """Handles the end of a running trial.

        `nodes` are the trial's nodes by rank, of which `lost_nodes` no longer answer. `state` is "interrupted" if time
        ran out before the ladder's end, "failed" if a process is gone (that of `rank` if known); `policy` has the rest.
        """
        ended = self._running.pop(trial_id)
        for loop in (self, *self.beside):
            loop._waits = False
            loop.lanes.lose(lost_nodes)
        job, start = ended.job, ended.start
        key = start.key
        wall_s, gpu_s = self.spending.end(trial_id)
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
            is_crowded=is_crowded,
            is_starved=is_starved,
            placed=start.nodes,
            has_spare=bool(self.lanes.count(avoid=lost_nodes)),
        )
        self._ends.append(end)
        ends, lagging = self._ends, self._nodes.on_trial_end(end, key, trial_measurements, self.history)
        if end.kind is Kind.CROWDED:
            self._crowded.add(key)
        follows = policy.follows(ends)
        if follows is Next.GIVEN_UP:
            self._give_up(job, trial_measurements, end.reason, of_search=not start.is_final)
        elif not end.kind.unexplained:
            self._search.blame_suspects()
        self.fault = self.fault or policy.fault(ends, num_lanes=self.num_lanes)
        is_missing = follows is Next.RETRY or state == "interrupted"
        is_missing = is_missing or (not start.is_final and self._search.is_suspect(key))
        self._log.record(ended.end_line(end, is_missing=is_missing, wall_s=wall_s, gpu_s=gpu_s))
        self._log.refresh()
        for loop in (self, *self.beside):
            loop.leave_out(lagging)
        if not start.is_final:
            self._search.trial_ended(key, interrupted=state == "interrupted", runs_again=follows is Next.RETRY)
            candidate = Candidate(recipe=start.recipe, layout=start.layout, micro_batches=start.micro_batches)
            for other in self.beside:
                other.overhear(candidate, self.history.measured(key))

    def leave_out(self, lagging: Iterable[Lagging]) -> None:
        """Takes note of nodes that lag, which this search or one beside it found."""
        for lag in lagging:
            if lag.node not in self.history.lagging:
                self._log.record(lag)
                self._log.refresh()
                if self.state is SearchState.DONE:  # its finalists may be others now
                    self.state = SearchState.RESUMING

    def overhear(self, candidate: Candidate, measured: Sequence[Measurement]) -> None:
        """Learns from another search's measurements of one of its candidates."""
        self._search.overhear(candidate, measured)

    def _give_up(self, job: Job, trial_measurements: Sequence[Measurement], reason: str, *, of_search: bool) -> None:
        """Marks the layout as failed, at once if the cluster is known to work, else later."""
        measured_batches = {m.batch for m in trial_measurements}
        batch = next((rung for rung in job.rungs if rung not in measured_batches), None)
        if batch is None:
            return
        failed = failed_measurement(job, batch, reason)
        if of_search:
            self._search.suspect(failed)
        else:  # the point itself ran before, so the cluster is not to blame
            self._log.record_outcomes([failed])
