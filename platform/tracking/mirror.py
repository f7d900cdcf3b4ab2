"""Mirrors a study's journal to MLflow or another tracker in a thread of its own, so that the search never waits."""

import fcntl
import os
import re
import shlex
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from platform.common.errors import NOT_RESOLVED, InputError
from platform.common.signals import INTERRUPTED
from platform.common.text import plural
from platform.report.forecast import forecaster_of
from platform.report.markdown import fastest_lines
from platform.report.rows import tables
from platform.report.summary import verdicts
from platform.study.folder import studies_option
from platform.study.history import History
from platform.study.journal import JOURNAL, Tail
from platform.study.result.result import StudyResult
from platform.tracking.content import Entry, PredictedFigures, content_of, id_of
from platform.tracking.runs import WINNER_FILES, Runs
from platform.tracking.study_run import roles
from platform.tracking.study_runs import StudyRuns
from platform.tracking.system_metrics import Samples
from platform.tracking.uri import check_uri, default_uri, display_uri, proxy_words, without_secrets
from platform.tracking.urls import viewing_lines
from trainers.records.journal import GateCurves, Line, Measured, Profile, RungStart, StudyHeader
from trainers.records.journal_lines import now
from trainers.records.measurement import Measurement, Outcome
from trainers.records.plain_files import open_plain, refuse_others

__all__ = ["Mirror", "check_uri", "default_uri", "display_uri"]

_OLD_SCHEMA = "out-of-date database schema"
"""Part of MLflow's message on a database of another schema version."""
_POLL_S = 0.5
_LONGEST_PAUSE_S = 15.0
_LAST_TRY_S = 3.0
_ROWS = 5
"""Number of fastest points in the table at the top of a study's page."""
_FILES = (*WINNER_FILES, "measurements.csv", "measurements.parquet", "*.png", "trace-*.json.gz")


class Mirror:
    """Follows the journal in `folder` and repeats it in MLflow at `uri` until `close`; a subclass uses another tracker.

    Skipped layouts get no run. While the server does not answer, the thread retries with growing pauses.

    Raises:
        InputError: MLflow does not know the URI's scheme.
    """

    tracker: ClassVar[str] = "MLflow"
    lock: ClassVar[str] = "mirror.lock"
    """File in the study's folder that this tracker's only mirror locks."""

    def __init__(self, folder: Path, uri: str, tail: Tail | None = None) -> None:
        """Starts from `tail`, a reader at the journal's first line; by default a new one."""
        self.folder = folder.absolute()
        self.uri = self._checked(uri)
        self._tail = tail or Tail(self.folder / JOURNAL)
        self._history = History()
        self._rung_starts: dict[tuple[str, int], str] = {}
        self._pending: deque[tuple[Entry, str, str]] = deque()
        self._seen_ids: set[str] = set()
        self._runs: StudyRuns | None = None
        self.addresses: Mapping[str, str] = {}
        """Address of each saved view; empty until MLflow has answered."""
        self._samples = Samples(self.folder, after_ms=0)
        self._marked_running = False
        self._complete = False
        self._problem = "no time was left"
        self._elsewhere = False
        self._looked = False
        """Whether the server has reported its content."""
        self._troubled = False
        self._is_ready: Callable[[], object] = lambda: True
        self._result: StudyResult | None = None
        self._also: Sequence[Path] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-mirror", daemon=True)

    def start(self, is_ready: Callable[[], object] = lambda: True) -> "Mirror":
        """Starts the thread and returns at once. The thread waits until `is_ready` returns true or `close` is called.

        The import of a tracker takes seconds and halves the speed of other work in this process.
        """
        self._is_ready = is_ready
        self._thread.start()
        return self

    def close(self, timeout_s: float, result: StudyResult | None = None, also: Sequence[Path] = ()) -> str:
        """Mirrors the rest, the study's end, its files and `also`, for at most `timeout_s` seconds.

        Call it after the journal's last line and the files are written. `result` is the result that the command shows
        (None: computed from the journal). Returns a sentence on what MLflow lacks; "" if it lacks nothing.
        """
        self._result, self._also = result, also
        if self._runs is None and self._troubled:
            # The server is down: try once, with a short timeout.
            timeout_s = min(timeout_s, _LAST_TRY_S)
        self._closing.set()
        self._thread.join(timeout_s)
        if self._complete:
            return ""
        if self._elsewhere:
            return f"Another process, the running search it seems, is mirroring this study to {self.tracker}."
        return self._lacking()

    @staticmethod
    def _checked(uri: str) -> str:
        """Returns the tracker's address in its full form.

        Raises:
            InputError: the address is invalid.
        """
        return check_uri(uri)

    def _connected(self, header: StudyHeader) -> StudyRuns:
        return Runs(self.uri, header)

    @property
    def place(self) -> str:
        """The tracker's address without secrets."""
        return display_uri(self.uri)

    @property
    def look(self) -> str:
        return viewing_lines(self.uri, self.addresses)

    @property
    def mirrored(self) -> frozenset[str]:
        """Ids of the measurements known to be in MLflow."""
        return frozenset(self._seen_ids) - {id_of(entry) for entry, _, _ in tuple(self._pending)}

    def _lacking(self) -> str:
        total = {measurement.id for measurement in self._read_all() if measurement.outcome is not Outcome.SKIPPED}
        missing = total - self.mirrored
        lacking = (
            f"{len(missing)} of {plural(len(total), 'measurement')}" if missing else "the study's end or its files"
        )
        if not self._looked:
            lacking = f"was not reached, so how much it lacks of {plural(len(total), 'measurement')} is not known"
        else:
            lacking = f"lacks {lacking}"
        name = shlex.quote(self.folder.name)
        if _OLD_SCHEMA in self._problem:
            return (
                f"MLflow at {display_uri(self.uri)} {lacking}: its tables are of another MLflow: copy it,"
                f" run `mlflow db upgrade {shlex.quote(display_uri(self.uri))}`, and then `python -m platform.report"
                f" {name}{studies_option(self.folder.parent)}`"
            )
        return (
            f"{self.tracker} at {self.place} {lacking} ({self._problem}{proxy_words(self.uri)}):"
            f" `python -m platform.report {name}{studies_option(self.folder.parent)}` brings it up to date."
        )

    def _read_all(self) -> tuple[Measurement, ...]:
        return History(Tail(self.folder / JOURNAL).read(last=True)).measurements

    def _work(self) -> None:
        lock = None
        pause_s = 1.0
        while not self._is_ready() and not self._closing.wait(_POLL_S):
            pass
        while True:
            closing = self._closing.is_set()
            wait_s = _POLL_S
            try:
                if lock is None:
                    lock = _only_one(self.folder / self.lock)
                    self._elsewhere = False
                self._sync(closing)
                pause_s = 1.0
            except BlockingIOError:
                self._elsewhere = True
                wait_s = _LONGEST_PAUSE_S
            except Exception as error:
                # The search continues after any error; the server's state is queried again when it answers.
                self._problem = without_secrets(_brief(error), self.uri)
                self._troubled = True
                self._runs = None
                self._marked_running = False
                wait_s = pause_s
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if closing:
                break
            self._closing.wait(wait_s)
        if lock is not None:
            os.close(lock)

    def _sync(self, closing: bool) -> None:
        for entry in self._tail.read(last=closing):
            self._take(entry)
        header = self._history.header
        if header is None:
            self._complete = closing
            return
        if self._runs is None:
            self._runs = self._connected(header)
            self._looked = True
            self.addresses = self._runs.addresses
            self._samples = Samples(self.folder, after_ms=self._runs.samples_until_ms())
        if not self._marked_running and not closing:
            self._runs.running()
            self._marked_running = True
        self._add_pending(self._runs, header)
        self._runs.samples(self._samples.read())
        if closing:
            self._finish(self._runs)

    def _add_pending(self, runs: StudyRuns, header: StudyHeader) -> None:
        measurements = [entry for entry, _, _ in self._pending if isinstance(entry, Measurement)]
        predicted = _predictions(measurements, header)
        while self._pending:
            entry, started, ended = self._pending[0]
            prediction = predicted.get(id_of(entry))
            runs.add(content_of(entry, header, started=started, ended=ended, predicted=prediction))
            self._pending.popleft()
        if any(measurement.repeat for measurement in measurements):
            runs.set_roles(roles(StudyResult.of(self._history)))

    def _take(self, entry: Line) -> None:
        self._history.extend([entry])
        if isinstance(entry, RungStart):
            self._rung_starts[entry.trial_id, entry.batch.micro_batch] = entry.at
        if isinstance(entry, Measured) and entry.measurement.outcome is not Outcome.SKIPPED:
            measurement = entry.measurement
            if measurement.id in self._seen_ids:
                return
            started = self._rung_starts.get((measurement.trial_id, measurement.batch.micro_batch), entry.at)
            self._pending.append((measurement, started, entry.at))
            self._seen_ids.add(measurement.id)
        if isinstance(entry, (GateCurves, Profile)):
            start = next((trial.at for trial in self._history.trials if trial.trial_id == entry.trial_id), entry.at)
            self._pending.append((entry, start, entry.at))

    def _finish(self, runs: StudyRuns) -> None:
        header, end = self._history.header, self._history.end
        assert header is not None
        if end is None:
            status, ended_at = "KILLED", self._history.last_at or now()
        else:
            status = "FINISHED" if end.exit_code in (0, 1, NOT_RESOLVED) else "FAILED"
            status = "KILLED" if end.exit_code == INTERRUPTED else status
            ended_at = end.at
        if self._troubled:
            runs.tidy()
        result = self._result or StudyResult.of(self._history)
        runs.set_roles(roles(result))
        self.addresses = runs.addresses
        sentences, table = verdicts(result), "\n".join(fastest_lines(result, _ROWS))
        runs.describe("\n\n".join(filter(None, (*sentences[:1], table, *sentences[1:]))))
        for name, rows in tables(result).items():
            runs.table(name, rows)
        own_files = sorted(path for pattern in _FILES for path in self.folder.glob(pattern) if _is_plain(path))
        runs.attach([*own_files, *self._also])
        runs.ended(result, self.folder, status=status, ended_at=ended_at)
        self._complete = True


def _predictions(measurements: Sequence[Measurement], header: StudyHeader) -> dict[str, PredictedFigures]:
    """Returns the prediction of each measurement by id; empty if the cost model does not know the devices."""
    forecast = forecaster_of(header).of(measurements)
    if forecast is None:
        return {}
    return {
        measurement.id: PredictedFigures(step_s=float(step_s), peak_gib=float(gib))
        for measurement, step_s, gib in zip(
            measurements, forecast.step.total_s, forecast.memory.allocated_gib, strict=True
        )
    }


def _only_one(path: Path) -> int:
    """Locks the study's mirror, because two mirrors would create runs twice; returns the file descriptor.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    file = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _is_plain(path: Path) -> bool:
    """Returns whether the path is a regular file. A link in another's folder could lead to any file of this user."""
    try:
        refuse_others(path)
    except InputError:
        return False
    return True


def _brief(error: Exception) -> str:
    """Returns the innermost cause in at most 160 characters; MLflow wraps a refused connection in four sentences."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(str(cause).split())
    if status := re.search(r"error code (\d{3})\b|too many (\d{3}) error responses", text):
        return f"it answers with HTTP status {status[1] or status[2]}"
    for sign in (
        "Connection refused",
        "timed out",
        "Name or service not known",
        "Temporary failure in name resolution",
    ):
        if sign.lower() in text.lower():
            return sign.lower()
    return text if len(text) <= 160 else f"{text[:157]}..."
