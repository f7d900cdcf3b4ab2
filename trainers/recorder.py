"""The recorder: an actor on the driver's node. What it was told is on disk before it answers."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers import journal
from trainers.codec import from_json
from trainers.journal_lines import record
from trainers.layout import BatchPoint
from trainers.measurement import ENDS_LADDER, Measurement, Outcome
from trainers.node import error_of

_FINAL = frozenset({Outcome.OOM, Outcome.HUNG, Outcome.FAILED})


class Recorder:
    """Appends the lines of running trials to the study's journal, and knows where each trial stands."""

    def __init__(self, journal_path: str) -> None:
        self._path = journal_path
        self._lock = threading.Lock()
        self._standing: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, list[str]] = {}
        self._done: dict[str, set[BatchPoint]] = {}
        self._ended: set[str] = set()

    def ready(self) -> bool:
        """Answers once the actor is up."""
        return True

    def peak(self, peak: dict[str, Any]) -> None:
        """Writes the measured matmul peak."""
        with self._lock:
            record(self._path, from_json(journal.Peak, peak))

    def gate(self, curves: dict[str, Any]) -> None:
        """Writes a layout's curves of the numerics gate."""
        with self._lock:
            record(self._path, from_json(journal.GateCurves, curves))

    def profile(self, profile: dict[str, Any], trace: bytes) -> None:
        """Keeps a profile's compressed trace beside the journal, unless it is empty, then writes the profile."""
        entry = from_json(journal.Profile, profile)
        if trace:
            entry = dataclasses.replace(entry, trace=f"trace-{entry.trial_id}.json.gz")
            (Path(self._path).parent / entry.trace).write_bytes(trace)
        with self._lock:
            record(self._path, entry)

    def stand(self, trial_id: str, phase: str, batch: dict[str, Any] | None, allowed_s: float) -> None:
        """Notes that a trial entered `phase` and promises news within `allowed_s`."""
        with self._lock:
            self._standing[trial_id] = {"phase": phase, "batch": batch, "until": time.monotonic() + allowed_s}
            if batch is not None:
                start = journal.RungStart(trial_id=trial_id, batch=from_json(BatchPoint, batch), deadline_s=allowed_s)
                record(self._path, start)

    def place(self, trial_id: str, nodes: list[str]) -> None:
        """Notes Ray's id of each rank's node."""
        with self._lock:
            self._nodes[trial_id] = nodes

    def seconds_until(self, moment_s: float) -> float:
        """How long it is until a moment of this node's monotonic clock, which the driver shares."""
        return moment_s - time.monotonic()

    def promise(self, trial_id: str, allowed_s: float) -> None:
        """Sets a standing trial's time for news anew, without a line in the journal."""
        with self._lock:
            self._standing[trial_id]["until"] = time.monotonic() + allowed_s

    def standing(self, trial_id: str) -> dict[str, Any] | None:
        """Phase, batch, `nodes` by rank and `overdue_s` (negative: in time) of a trial, None before its first word."""
        with self._lock:
            found = self._standing.get(trial_id)
            if found is None:
                return None
            return {**found, "nodes": self._nodes.get(trial_id, []), "overdue_s": time.monotonic() - found["until"]}

    def measured(self, trial_id: str, measurement: dict[str, Any], rungs: Sequence[dict[str, Any]]) -> str:
        """Writes a measurement; returns its outcome, "known" where a failure has nothing to add, or "cut off".

        Whoever sees a failure first is nearest to its cause: after the ladder's end no other is written. A failure at a
        point that is measured came after it, so it goes to the next one of `rungs`, if there is one. One in the
        numerics gate, whose batch is none of them, goes to the first; of a trial without rungs nothing is written. Nor
        is a trial that stands still because a node of it is out of reach, which says nothing of its layout.
        """
        entry = from_json(Measurement, measurement)
        if entry.outcome is Outcome.HUNG and self._is_cut_off(trial_id):
            return "cut off"
        with self._lock:
            done = self._done.setdefault(trial_id, set())
            if entry.outcome in _FINAL:
                ladder = [from_json(BatchPoint, rung) for rung in rungs]
                left = next((point for point in (entry.batch, *ladder) if point in ladder and point not in done), None)
                if trial_id in self._ended or left is None:
                    return "known"
                entry = dataclasses.replace(entry, batch=left)
            record(self._path, journal.Measured(measurement=entry))
            done.add(entry.batch)
            if entry.outcome in ENDS_LADDER:
                self._ended.add(trial_id)
        return entry.outcome.value

    def _is_cut_off(self, trial_id: str) -> bool:
        """Whether a node of the trial answers no more: Ray itself notes that later than a watchdog does."""
        ids = set(self._nodes.get(trial_id, ()))
        if not ids:
            return False
        import ray

        of_trial = [each for each in ray.nodes() if each["NodeID"] in ids]
        return any(
            not each["Alive"] or error_of(each["NodeManagerAddress"], each["NodeManagerPort"], timeout_s=3)
            for each in of_trial
        )
