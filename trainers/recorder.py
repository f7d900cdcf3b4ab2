"""The recorder: an actor on the driver's node. What it was told is on disk before it answers."""

import threading
import time
from typing import Any

from trainers import journal
from trainers.codec import from_json
from trainers.layout import BatchPoint
from trainers.measurement import Measurement, Outcome

_FINAL = frozenset({Outcome.OOM, Outcome.HUNG, Outcome.FAILED})


class Recorder:
    """Appends the lines of running trials to the study's journal, and knows where each trial stands."""

    def __init__(self, journal_path: str) -> None:
        self._path = journal_path
        self._lock = threading.Lock()
        self._standing: dict[str, dict[str, Any]] = {}
        self._closed: set[str] = set()

    def ready(self) -> bool:
        """Answers once the actor is up."""
        return True

    def peak(self, peak: dict[str, Any]) -> None:
        """Writes the measured matmul peak."""
        with self._lock:
            journal.record(self._path, from_json(journal.Peak, peak))

    def stand(self, trial_id: str, phase: str, batch: dict[str, Any] | None, allowed_s: float) -> None:
        """Notes that a trial entered `phase` and promises news within `allowed_s`."""
        with self._lock:
            self._standing[trial_id] = {"phase": phase, "batch": batch, "until": time.monotonic() + allowed_s}
            if batch is not None:
                start = journal.RungStart(trial_id=trial_id, batch=from_json(BatchPoint, batch), deadline_s=allowed_s)
                journal.record(self._path, start)

    def standing(self, trial_id: str) -> dict[str, Any] | None:
        """Phase, batch and `overdue_s` (negative while in time) of a trial, None before its first word."""
        with self._lock:
            found = self._standing.get(trial_id)
            return None if found is None else {**found, "overdue_s": time.monotonic() - found["until"]}

    def measured(self, trial_id: str, measurement: dict[str, Any]) -> str:
        """Writes a measurement; returns its outcome, or "known" where a failure of the trial was written before.

        Whoever sees a failure first is nearest to its cause.
        """
        entry = from_json(Measurement, measurement)
        with self._lock:
            if entry.outcome in _FINAL:
                if trial_id in self._closed:
                    return "known"
                self._closed.add(trial_id)
            journal.record(self._path, journal.Measured(measurement=entry))
        return entry.outcome.value
