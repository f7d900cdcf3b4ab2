"""What a person sees while a search runs: plain lines on standard error, drawn from the journal as it grows."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from platform.loop import Loop
from platform.reports.progress import Progress, count_outcomes, measurement_line, progress_line
from platform.reports.summary import winner
from platform.study.history import History
from platform.study.journal import Tail
from trainers.journal import Measured, RungStart, TrialStart
from trainers.layout import BatchPoint
from trainers.measurement import Outcome

POLL_S = 0.5


def say(text: str) -> None:
    """One line on standard error: standard output belongs to the result."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def followed(journal: Path, loop: Loop, *, planned: int) -> Iterator[None]:
    """Prints a line for each trial, rung and measurement that the journal gains while the context lasts."""
    follower = _Follower(journal, loop, planned)
    stop = threading.Event()
    thread = threading.Thread(target=follower.run, args=(stop,), name="follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


class _Follower:
    def __init__(self, journal: Path, loop: Loop, planned: int) -> None:
        self._tail = Tail(journal)
        self._history = History(self._tail.read())
        self._loop = loop
        self._planned = planned
        self._trial: TrialStart | None = None
        self._batch: BatchPoint | None = None
        self._skipped = 0
        self._start_s = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(POLL_S):
            self._step()
        self._step()

    def _step(self) -> None:
        entries = self._tail.read()
        self._history.extend(entries)
        for entry in entries:
            if isinstance(entry, TrialStart):
                self._trial, self._batch = entry, None
                say(progress_line(self._progress()))
            elif isinstance(entry, RungStart):
                self._batch = entry.batch
                say(progress_line(self._progress()))
            elif isinstance(entry, Measured) and entry.measurement.outcome is not Outcome.SKIPPED:
                say("  " + measurement_line(entry.measurement))

    def _progress(self) -> Progress:
        header = self._history.header
        assert header is not None and self._trial is not None
        mine = [m for m in self._history.measurements if m.recipe == self._trial.recipe]
        left_s = self._loop.time_left_s()
        gpu_budget = self._loop.budget.gpu_s
        return Progress(
            trial=len(self._history.trials),
            num_trials=max(self._planned, len(self._history.trials)),
            layout=self._trial.layout,
            batch=self._batch,
            incumbent=winner(mine),
            outcomes=count_outcomes(self._history.measurements),
            elapsed_s=time.monotonic() - self._start_s,
            left_s=left_s if math.isfinite(left_s) else None,
            gpu_s=self._history.gpu_s,
            gpu_left_s=None if gpu_budget is None else max(0.0, gpu_budget - self._history.gpu_s),
            miniature=header.miniature,
        )
