"""The searching phase: what the searcher wants to run next, what it learns, and which layouts are under suspicion."""

import dataclasses
from collections.abc import Sequence

from platform.finals.ranking import winner
from platform.loop.jobs import Settings, make_job, misfits_of_layout
from platform.loop.log import Log
from platform.searchers import RungSearcher, Searcher
from platform.study.keys import key_of
from search_spaces.candidate import Candidate
from trainers.values.batch import BatchPoint
from trainers.values.measurement import Measurement, Outcome

Work = tuple[Candidate, tuple[BatchPoint, ...]]
"""A candidate with the rungs that a trial of it is to climb."""


class Search:
    """A searcher beside the log that it learns from."""

    def __init__(
        self, searcher: Searcher[Candidate], candidates: Sequence[Candidate], log: Log, settings: Settings
    ) -> None:
        self._searcher, self._log, self._settings = searcher, log, settings
        self._rung_searcher = searcher if isinstance(searcher, RungSearcher) else None
        self._candidates = {candidate.key: candidate for candidate in candidates}
        self._asked: Candidate | None = None
        """What the searcher suggested last."""
        self._suspects: list[Measurement] = []
        """Given up since a trial last ran well: they are blamed once another one shows that the cluster works."""
        for candidate in candidates:
            if self._rung_searcher or not log.history.missing(candidate):
                self._update(candidate)

    @property
    def why_stopped(self) -> str:
        """Why `next` gives nothing more."""
        return self._searcher.why_stopped

    def next(self) -> Work | None:
        """Returns what to run next; once the searcher has ended, the best layouts' rungs between; None for nothing."""
        while (candidate := self._searcher.suggest()) is not None:
            if self._rung_searcher:
                candidate = dataclasses.replace(candidate, refine=False)
            if missing := self._log.history.missing(candidate):
                self._asked = candidate
                return candidate, _points(candidate, missing)
            self._update(candidate)
        self.blame_suspects()
        return self._refinement(self._rung_searcher) if self._rung_searcher else None

    def trial_ended(self, key: str, *, interrupted: bool) -> None:
        """Passes on to the searcher what a trial of the candidate measured, unless rungs that it asked for are left:
        asked again, it gives these again, those between the last that ran and the first that did not.
        """
        candidate, asked = self._candidates.get(key), self._asked
        if candidate is None:
            return
        if interrupted or asked is None or asked.key != key or not self._log.history.missing(asked):
            self._update(candidate)

    def suspect(self, failed: Measurement) -> None:
        """Takes in that a layout's trials died without a word, and blames it once the cluster is known to work."""
        self._suspects.append(failed)
        candidate = self._candidates.get(key_of(failed))
        if candidate is not None:
            self._searcher.update(candidate, (*self._log.history.measured(candidate.key), failed))

    def is_suspect(self, key: str) -> bool:
        """Returns whether the candidate waits to be blamed."""
        return any(key_of(each) == key for each in self._suspects)

    def blame_suspects(self) -> None:
        """Settles the suspects as failed: the cluster works."""
        self._log.settle(self._suspects)
        self._suspects.clear()

    def _update(self, candidate: Candidate) -> None:
        """Updates the searcher with the rungs of the candidate that are settled, and all that was measured of it."""
        history = self._log.history
        missing = history.missing(candidate)
        settled = tuple(each for each in candidate.micro_batches if each not in missing)
        if settled:
            known = dataclasses.replace(candidate, micro_batches=settled)
            self._searcher.update(known, history.measured(candidate.key))

    def _refinement(self, searcher: RungSearcher[Candidate]) -> Work | None:
        """Once a searcher of single rungs has ended: the rungs between, for the best layout of each recipe."""
        for recipe in dict.fromkeys(candidate.recipe for candidate in self._candidates.values()):
            best = winner([m for m in self._log.history.measurements if m.recipe == recipe])
            candidate = self._candidates.get(key_of(best)) if best else None
            if candidate is not None and (rungs := self._rungs_between(candidate, searcher.held_back(candidate))):
                self._asked = None
                return candidate, _points(candidate, rungs)
        return None

    def _rungs_between(self, candidate: Candidate, held: tuple[int, ...]) -> tuple[int, ...]:
        """Rungs that were `held` back, but for those that do not fit by the layout's line of memory, and those between
        the largest that ran and the first that does not fit.
        """
        history = self._log.history
        job = make_job(
            candidate, _points(candidate, held), None, history=history, settings=self._settings, stop_at_s=None
        )
        self._log.settle(misfits_of_layout(job, history, self._settings))
        known = history.measured(candidate.key)
        skipped = {each.batch.micro_batch for each in known if each.outcome is Outcome.SKIPPED}
        tried = {each.batch.micro_batch for each in known}.union(held) - skipped
        return history.missing(dataclasses.replace(candidate, micro_batches=tuple(sorted(tried))))


def _points(candidate: Candidate, rungs: Sequence[int]) -> tuple[BatchPoint, ...]:
    return tuple(BatchPoint.of(candidate.recipe, candidate.layout, each) for each in rungs)
