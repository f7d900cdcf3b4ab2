"""The exploring phase: the searcher's next trial, what it learns, and layouts suspected to fail."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from platform.search.loop.budget import Spending
from platform.search.loop.jobs import TrialSettings, make_job, misfits_of_layout
from platform.search.loop.study_log import StudyLog
from platform.search.loop.time_plan import TimePlan
from platform.search.loop.transitions import ExplorationTrial
from platform.search.loop.trial_time import least_trial_s
from platform.searchers import RungSearcher, Searcher
from platform.study.keys import key_of
from platform.study.result.ranking import winner
from search_spaces.candidate import Candidate
from trainers.records.measurement import Measurement, Outcome
from trainers.records.probe import Probe
from trainers.spec.batch import BatchPoint

FIRST_TRIALS = 2
"""Trials that may run before the first one has ended, under a budget of device seconds. The time of a trial is unknown
until then, and a comparison takes two.
"""
Relearn = Callable[[Probe], Searcher[Candidate]]
"""Returns a new searcher whose predictions use a probe's figures."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchEnd:
    reason: str
    tried_all: bool
    """Whether the searcher had nothing more to try; otherwise a budget ended the search."""


class Exploration:
    """A searcher together with the log that it learns from."""

    def __init__(
        self,
        searcher: Searcher[Candidate],
        candidates: Sequence[Candidate],
        log: StudyLog,
        settings: TrialSettings,
        relearn: Relearn | None = None,
    ) -> None:
        self._log, self._settings, self._relearn = log, settings, relearn
        self._candidates = {candidate.key: candidate for candidate in candidates}
        self._running: dict[str, ExplorationTrial] = {}
        """The search's running trials, by candidate key."""
        self._passed_over: set[str] = set()
        """Keys of candidates whose trials are too long for the remaining time."""
        self._aside: dict[str, Candidate] = {}
        """By key: candidates whose ladders were cut short by time, to be completed after all others."""
        self._suspects: list[Measurement] = []
        """Layouts given up since a trial last ran well; marked as failed once the cluster is known to work."""
        self._overheard: dict[str, tuple[Candidate, Sequence[Measurement]]] = {}
        """By key: candidates of other searches, with their measurements."""
        self._take(searcher)

    @property
    def running(self) -> tuple[ExplorationTrial, ...]:
        return tuple(self._running.values())

    def _take(self, searcher: Searcher[Candidate]) -> None:
        """Sets the searcher, and updates it with everything known."""
        self._searcher = searcher
        self._rung_searcher = searcher if isinstance(searcher, RungSearcher) else None
        for candidate in self._candidates.values():
            if self._rung_searcher or not self._log.history.missing(candidate):
                self._update(candidate)
            if candidate.key in self._passed_over or candidate.key in self._aside:
                searcher.update(candidate, self._log.history.measured(candidate.key))
        for suspect in self._suspects:
            self._update_with(suspect)
        for candidate, measured in self._overheard.values():
            self.overhear(candidate, measured)

    def overhear(self, candidate: Candidate, measured: Sequence[Measurement]) -> None:
        """Records what another search has measured of one of its candidates."""
        self._overheard[candidate.key] = candidate, measured
        if self._rung_searcher:
            self._rung_searcher.overhear(candidate, measured)

    def _takes_probe(self) -> bool:
        """Predicts with the rates measured by the study's first trial from now on; returns whether they are new."""
        probe, relearn = self._log.history.probe, self._relearn
        if probe is None or relearn is None:
            return False
        self._relearn = None
        self._take(relearn(probe))
        return True

    def next_in_time(
        self, time: TimePlan, spending: Spending, *, may_pass_over: bool
    ) -> tuple[ExplorationTrial | None, SearchEnd | None]:
        """Returns the search's next trial, or why the search ends: lack of work comes before any budget.

        If trials differ in length, one that is too long for the remaining time is passed over for a shorter one.
        Passing over is final in a session, so it is only allowed with `may_pass_over`, once the reserved time is
        certain.
        """
        history, timing = self._log.history, self._settings.timing
        while (trial := self._next()) is not None:
            recipe = trial.candidate.recipe
            is_compared = time.is_compared(recipe)
            if len(self._running) >= FIRST_TRIALS and not history.trial_s and math.isfinite(spending.gpu_left_s()):
                return None, SearchEnd(reason="", tried_all=False)
            kept_s = time.reserve_s if is_compared else 0.0
            trial_s = least_trial_s(trial.candidate, trial.rungs, history, timing)
            reason = spending.over_reason(trial_s=trial_s, reserve_s=kept_s)
            if not reason:
                return dataclasses.replace(trial, runs_one=not is_compared, leave_s=time.leave_s(recipe)), None
            has_time = not spending.over_reason(trial_s=history.start_s, reserve_s=kept_s)
            if not (may_pass_over and has_time and timing.fixes_steps):
                return None, SearchEnd(reason=reason, tried_all=False)
            self._pass_over(trial.candidate)
        if self._passed_over:
            reason = spending.over_reason(trial_s=math.inf, reserve_s=time.reserve_s)
            return None, SearchEnd(reason=reason, tried_all=False)
        return None, SearchEnd(reason=self._searcher.stopped_reason, tried_all=True)

    def _next(self) -> ExplorationTrial | None:
        """Returns the searcher's suggestion; once it has none, untested rungs next to each best layout's."""
        running = tuple(
            dataclasses.replace(trial.candidate, micro_batches=tuple(point.micro_batch for point in trial.rungs))
            for trial in self._running.values()
        )
        while (candidate := self._searcher.suggest(running)) is not None:
            if self._rung_searcher:
                if candidate.finds_largest:  # its ladder is searched over all of its sizes
                    candidate = self._candidates.get(candidate.key, candidate)
                candidate = dataclasses.replace(candidate, refine=False)
            if missing := self._log.history.missing(candidate):
                return dataclasses.replace(_trial(candidate, missing), suggestion=candidate)
            self._update(candidate)
        if not self._running:
            self.blame_suspects()
        for candidate in self._aside.values():
            if candidate.key not in self._running and (missing := self._log.history.missing(candidate)):
                return _trial(candidate, missing)
        return self._refinement(self._rung_searcher) if self._rung_searcher else None

    def _pass_over(self, candidate: Candidate) -> None:
        """Makes the searcher continue without the candidate, whose trial is too long for the rest of the session."""
        self._passed_over.add(candidate.key)
        planned = self._candidates.get(candidate.key, candidate)
        self._searcher.update(planned, self._log.history.measured(candidate.key))

    def begin(self, trial: ExplorationTrial) -> None:
        """Records that the trial runs, so that its layout is not suggested meanwhile."""
        self._running[trial.candidate.key] = trial

    def trial_ended(self, key: str, *, interrupted: bool, runs_again: bool) -> None:
        """Updates the searcher with the measurements of a candidate's trial.

        Skipped if the trial `runs_again`, and while requested rungs are missing, which the searcher suggests again.
        After an `interrupted` trial, a searcher of whole ladders continues with other candidates.
        """
        ended = self._running.pop(key)
        if runs_again:
            return
        is_new = self._takes_probe()
        candidate, suggested = self._candidates.get(key), ended.suggestion
        if candidate is None or (is_new and self._rung_searcher):  # a new searcher already knows all measurements
            return
        if interrupted and not self._rung_searcher:
            self._aside[key] = candidate
            self._searcher.update(candidate, self._log.history.measured(key))
            return
        if interrupted or suggested is None or not self._log.history.missing(suggested):
            self._update(candidate)

    def suspect(self, failed: Measurement) -> None:
        """Records that a layout's trials died without a result, to be marked as failed once the cluster works."""
        self._suspects.append(failed)
        self._update_with(failed)

    def _update_with(self, failed: Measurement) -> None:
        candidate = self._candidates.get(key_of(failed))
        if candidate is not None:
            self._searcher.update(candidate, (*self._log.history.measured(candidate.key), failed))

    def is_suspect(self, key: str) -> bool:
        return any(key_of(suspect) == key for suspect in self._suspects)

    def blame_suspects(self) -> None:
        """Marks the suspects as failed, because the cluster works."""
        self._log.record_outcomes(self._suspects)
        self._suspects.clear()

    def _update(self, candidate: Candidate) -> None:
        """Updates the searcher with the candidate's settled rungs and all its measurements."""
        history = self._log.history
        missing = history.missing(candidate)
        settled = tuple(micro_batch for micro_batch in candidate.micro_batches if micro_batch not in missing)
        if settled:
            settled_candidate = dataclasses.replace(candidate, micro_batches=settled)
            self._searcher.update(settled_candidate, history.measured(candidate.key))

    def _refinement(self, searcher: RungSearcher[Candidate]) -> ExplorationTrial | None:
        """Returns further rungs of a recipe's best layout, after a searcher of single rungs has ended."""
        running = {trial.candidate.recipe for trial in self._running.values()}
        for recipe in dict.fromkeys(candidate.recipe for candidate in self._candidates.values()):
            if recipe in running:
                continue
            best = winner(self._log.history.of_recipe(recipe.id), self._log.history.paces)
            candidate = self._candidates.get(key_of(best)) if best else None
            if best is None or candidate is None or candidate.finds_largest or candidate.key in self._passed_over:
                continue
            if rungs := self._further_rungs(candidate, searcher.deferred(candidate), best.batch.micro_batch):
                return _trial(candidate, rungs)
        return None

    def _further_rungs(self, candidate: Candidate, deferred: tuple[int, ...], best: int) -> tuple[int, ...]:
        """Returns the rungs next to the `best` that are worth running.

        They are the rungs `deferred`, and the next one above `best` if that is the largest that ran, without those that
        do not fit by the layout's line of memory. Otherwise they are rungs between the largest that ran and the first
        that does not fit.
        """
        history = self._log.history
        largest = max(m.batch.micro_batch for m in history.measured(candidate.key) if m.outcome is not Outcome.SKIPPED)
        above = [rung for rung in candidate.micro_batches if rung > best == largest and rung not in deferred]
        further = tuple(sorted({*deferred, *above[:1]}))
        job = make_job(
            candidate, _points(candidate, further), None, history=history, settings=self._settings, stop_at_s=None
        )
        self._log.record_outcomes(misfits_of_layout(job, history, self._settings))
        measured = history.measured(candidate.key)
        skipped = {measurement.batch.micro_batch for measurement in measured if measurement.outcome is Outcome.SKIPPED}
        rungs = {measurement.batch.micro_batch for measurement in measured}.union(further) - skipped
        return history.missing(dataclasses.replace(candidate, micro_batches=tuple(sorted(rungs))))


def _trial(candidate: Candidate, rungs: Sequence[int]) -> ExplorationTrial:
    return ExplorationTrial(candidate=candidate, rungs=_points(candidate, rungs))


def _points(candidate: Candidate, rungs: Sequence[int]) -> tuple[BatchPoint, ...]:
    return tuple(BatchPoint.of(candidate.recipe, candidate.layout, rung) for rung in rungs)
