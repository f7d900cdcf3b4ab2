"""The recorder, an actor on the driver's node that writes each received fact to disk before it answers.

If its process dies, Ray restarts it up to `MAX_RESTARTS` times and repeats unanswered calls. So each method may run
twice for one call, and state outside the journal is kept in a file.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers.host.node import error_of
from trainers.records import journal
from trainers.records.journal_lines import JournalError, from_line, record
from trainers.records.measurement import ENDS_LADDER, Measurement, Outcome
from trainers.records.plain_files import MOST_BYTES, read_json, read_plain
from trainers.records.probe import Probe
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json

MAX_RESTARTS = 12
"""Restarts in a session, some for each time that the host's memory is full; a process that dies more often has a
permanent cause.
"""
ANSWER_S = 120.0
"""Seconds allowed for an answer: enough for a new process on a busy machine and a slow disk."""
_AGAIN_S = 0.2
_GONE = f"the study's recorder is gone: its process died more than {MAX_RESTARTS} times, or its node is lost"
_FINAL = frozenset({Outcome.OOM, Outcome.HUNG, Outcome.FAILED})


class RecorderError(RuntimeError):
    """The recorder does not answer; the text states why. Facts that it acknowledged are in the journal."""


class RecorderGoneError(RecorderError):
    """The recorder will never answer again."""


def find(name: str) -> Any:
    """Returns the handle of the recorder actor `name`.

    Raises:
        RecorderGoneError: there is no such actor.
    """
    import ray

    try:
        return ray.get_actor(name)
    except ValueError as error:
        raise RecorderGoneError(_GONE) from error


def call(recorder: Any, method: str, *arguments: Any, limit_s: float = ANSWER_S) -> Any:
    """Returns the result of a method of the actor; raises what the method raises.

    Raises:
        RecorderGoneError: its process died too often, or its node is lost.
        RecorderError: it gave no answer within `limit_s` seconds.
    """
    import ray
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, OutOfMemoryError, RayActorError

    until_s = time.monotonic() + limit_s
    while True:
        try:
            reference = getattr(recorder, method).remote(*arguments)
            return ray.get(reference, timeout=max(0.0, until_s - time.monotonic()))
        except GetTimeoutError as error:
            raise RecorderError(f"the study's recorder gave no answer within {limit_s:.0f} s") from error
        except ActorUnavailableError as error:  # temporarily unreachable, so ask again
            if time.monotonic() > until_s:
                raise RecorderError(f"the study's recorder was out of reach for {limit_s:.0f} s") from error
            time.sleep(_AGAIN_S)
        except (RayActorError, OutOfMemoryError) as error:  # the second is not a kind of the first
            raise RecorderGoneError(_GONE) from error


class Recorder:
    """Appends the lines of running trials to the study's journal, and keeps each trial's state."""

    def __init__(self, journal_path: str, state_path: str) -> None:
        """Opens the journal. `state_path` is a file for state outside the journal; if it exists, an earlier process
        wrote it and the state is restored.
        """
        self._path = journal_path
        self._state_path = Path(state_path)
        self._lock = threading.Lock()
        self._statuses: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, list[str]] = {}
        self._addresses: dict[str, list[str]] = {}
        self._beside: dict[str, set[str]] = {}
        """For each running trial: the trials that have run beside it since its last batch point began."""
        self._measured_batches: dict[str, set[BatchPoint]] = {}
        self._ended_trials: set[str] = set()
        if self._state_path.exists():
            self._restore()

    def ready(self) -> bool:
        """Returns True when the actor is up."""
        return True

    def peak(self, peak: dict[str, Any]) -> None:
        self._record(from_json(journal.Peak, peak))

    def probed(self, probe: dict[str, Any]) -> None:
        """Records the ranks' measurements of devices and links."""
        self._record(journal.Probed(probe=from_json(Probe, probe)))

    def gate(self, curves: dict[str, Any]) -> None:
        self._record(from_json(journal.GateCurves, curves))

    def profile(self, profile: dict[str, Any], trace: bytes) -> None:
        """Stores a profile's compressed trace beside the journal, unless it is empty, then records the profile."""
        entry = from_json(journal.Profile, profile)
        if trace:
            entry = dataclasses.replace(entry, trace=f"trace-{entry.trial_id}.json.gz")
            (Path(self._path).parent / entry.trace).write_bytes(trace)
        self._record(entry)

    def output(self, trial_id: str, text: str) -> str:
        """Stores the end of a command's output beside the journal; returns the file's name."""
        path = Path(self._path).parent / f"output-{trial_id}.txt"
        path.write_text(text)
        return path.name

    def set_status(self, trial_id: str, phase: str, batch: dict[str, Any] | None, allowed_s: float) -> None:
        """Sets a trial's phase and batch point; its next report is due within `allowed_s`."""
        with self._lock:
            before = self._statuses.get(trial_id)
            if batch is not None and (before is None or before["batch"] != batch):
                start = journal.RungStart(trial_id=trial_id, batch=from_json(BatchPoint, batch), deadline_s=allowed_s)
                record(self._path, start, must_exist=True)
                self._beside[trial_id] = self._beside.keys() - {trial_id}
            self._join(trial_id)
            self._statuses[trial_id] = {"phase": phase, "batch": batch, "until": time.monotonic() + allowed_s}
            self._keep()

    def joined(self, trial_id: str) -> None:
        """Notes that a trial of another study on the same cluster runs from now on."""
        with self._lock:
            self._join(trial_id)
            self._keep()

    def _join(self, trial_id: str) -> None:
        if trial_id not in self._beside:
            for others in self._beside.values():
                others.add(trial_id)
            self._beside[trial_id] = set(self._beside)

    def place(self, trial_id: str, nodes: list[str], addresses: Sequence[str] = ()) -> None:
        """Sets the Ray id and the address of each rank's node."""
        with self._lock:
            self._nodes[trial_id], self._addresses[trial_id] = nodes, list(dict.fromkeys(addresses))
            self._keep()

    def ended(self, trial_id: str) -> None:
        """Notes that a trial has ended, so that it no longer counts as beside others."""
        with self._lock:
            self._beside.pop(trial_id, None)
            self._keep()

    def seconds_until(self, moment_s: float) -> float:
        """Returns the seconds until a moment of this node's monotonic clock, which the driver shares."""
        return moment_s - time.monotonic()

    def promise(self, trial_id: str, allowed_s: float) -> None:
        """Extends the time until a trial's next report, without a line in the journal."""
        with self._lock:
            self._statuses[trial_id]["until"] = time.monotonic() + allowed_s
            self._keep()

    def status(self, trial_id: str) -> dict[str, Any] | None:
        """Returns a trial's phase, batch, `nodes` by rank and `overdue_s` (negative if in time); None before its first
        report.
        """
        with self._lock:
            status = self._statuses.get(trial_id)
            if status is None:
                return None
            return {
                **status,
                "nodes": self._nodes.get(trial_id, []),
                "overdue_s": time.monotonic() - status["until"],
            }

    def measured(self, trial_id: str, measurement: dict[str, Any], rungs: Sequence[dict[str, Any]]) -> str:
        """Records a measurement. Returns its outcome; "known" if it adds nothing, or "cut off".

        The first reported failure is the closest to the cause, so later ones of an ended ladder are dropped. A failure
        at an already measured batch point happened after it and is recorded for the next of `rungs`, if any. A failure
        in the numerics gate, whose batch is not among them, is recorded for the first; without `rungs` nothing is
        written. A trial that hangs because one of its nodes is unreachable is not recorded, as this says nothing about
        its layout.
        """
        entry = from_json(Measurement, measurement)
        if entry.outcome is Outcome.HUNG and self._is_cut_off(trial_id):
            return "cut off"
        with self._lock:
            measured_batches = self._measured_batches.setdefault(trial_id, set())
            if entry.outcome in _FINAL:
                ladder = [from_json(BatchPoint, rung) for rung in rungs]
                next_batch = next(
                    (point for point in (entry.batch, *ladder) if point in ladder and point not in measured_batches),
                    None,
                )
                if trial_id in self._ended_trials or next_batch is None:
                    return "known"
                entry = dataclasses.replace(entry, batch=next_batch)
            elif entry.batch in measured_batches:  # a repeated call: the process died between writing and answering
                return "known"
            entry = self._placed(trial_id, entry)
            record(self._path, journal.Measured(measurement=entry), must_exist=True)
            self._count(trial_id, entry)
        return entry.outcome.value

    def _placed(self, trial_id: str, entry: Measurement) -> Measurement:
        beside = tuple(sorted(self._beside.get(trial_id, ())))
        return dataclasses.replace(entry, addresses=tuple(self._addresses.get(trial_id, ())), beside=beside)

    def _record(self, entry: journal.Peak | journal.Probed | journal.GateCurves | journal.Profile) -> None:
        with self._lock:
            record(self._path, entry, must_exist=True)

    def _count(self, trial_id: str, entry: Measurement) -> None:
        self._measured_batches.setdefault(trial_id, set()).add(entry.batch)
        if entry.outcome in ENDS_LADDER:
            self._ended_trials.add(trial_id)

    def _keep(self) -> None:
        """Writes the trials' states for the recorder's next process. Monotonic time stays valid there, because it
        belongs to the machine.
        """
        part = self._state_path.with_suffix(".part")
        beside = {trial_id: sorted(others) for trial_id, others in self._beside.items()}
        state = {"statuses": self._statuses, "nodes": self._nodes, "addresses": self._addresses, "beside": beside}
        part.write_text(json.dumps(state))
        part.replace(self._state_path)

    def _restore(self) -> None:
        state = read_json(self._state_path)
        self._statuses, self._nodes, self._addresses = state["statuses"], state["nodes"], state["addresses"]
        self._beside = {trial_id: set(others) for trial_id, others in state["beside"].items()}
        for line in read_plain(Path(self._path), most_bytes=MOST_BYTES).splitlines():
            try:
                entry = from_line(line)
            except JournalError:  # cut short or damaged; readers skip it, and the trial measures again
                continue
            if isinstance(entry, journal.Measured) and entry.measurement.trial_id in self._statuses:
                self._count(entry.measurement.trial_id, entry.measurement)

    def _is_cut_off(self, trial_id: str) -> bool:
        """Returns whether a node of the trial does not answer; Ray notices this later than a watchdog does."""
        ids = set(self._nodes.get(trial_id, ()))
        if not ids:
            return False
        import ray

        of_trial = [node for node in ray.nodes() if node["NodeID"] in ids]
        return any(
            not node["Alive"] or error_of(node["NodeManagerAddress"], node["NodeManagerPort"], timeout_s=3)
            for node in of_trial
        )
