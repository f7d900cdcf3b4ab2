"""Plain lines on how a search stands: for standard error where there is no terminal to draw on."""

import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Protocol

from platform.finals.ranking import winners
from platform.reports.forecast import forecaster_of
from platform.reports.text import duration, figure, plural
from platform.study.history import History
from platform.study.journal import Tail
from trainers.journal import Line, Measured, RungStart, TrialStart
from trainers.layout import BatchPoint, Layout
from trainers.measurement import Measurement, Outcome


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a progress line is made of."""

    trial: int
    """Number of the running trial, from 1; 0 before the first."""
    num_trials: int | None
    """Trials planned in all; None where the searcher has no plan."""
    layout: Layout | None
    """The running trial's; None between trials."""
    batch: BatchPoint | None
    """The running rung; None before the trial's first."""
    incumbent: Measurement | None
    outcomes: Counter[Outcome]
    elapsed_s: float
    left_s: float | None
    """Seconds that the time budget leaves; None without one."""
    gpu_s: float
    gpu_left_s: float | None = None
    """Device seconds that the budget leaves; None without one."""
    miniature: bool = False


def count_outcomes(measurements: Iterable[Measurement]) -> Counter[Outcome]:
    """How many measurements ended how."""
    return Counter(each.outcome for each in measurements)


def progress_line(progress: Progress) -> str:
    """The line, without a line end."""
    # A trial tried again, or one that confirms a winner, is none of those planned.
    of = "" if progress.num_trials is None or progress.trial > progress.num_trials else f"/{progress.num_trials}"
    parts = [f"trial {progress.trial}{of}"]
    if progress.layout is not None:
        rung = (
            "starting" if progress.batch is None else f"MBS {progress.batch.micro_batch} x {progress.batch.grad_accum}"
        )
        parts[0] += f": {progress.layout.label}, {rung}"
    parts.append(_incumbent(progress.incumbent))
    parts.append(_outcomes(progress.outcomes))
    spent = duration(progress.elapsed_s)
    parts.append(spent if progress.left_s is None else f"{spent}, {duration(progress.left_s)} left")
    gpu = f"{figure(progress.gpu_s)} GPU-s"
    parts.append(gpu if progress.gpu_left_s is None else f"{gpu}, {figure(progress.gpu_left_s)} left")
    line = " | ".join(parts)
    return f"[miniature] {line}" if progress.miniature else line


def measurement_line(measurement: Measurement) -> str:
    """One finished batch point: outcome first, then what was run and its figure or reason."""
    point = f"{measurement.layout.label}, MBS {measurement.batch.micro_batch} x {measurement.batch.grad_accum}"
    mark = "[miniature] " if measurement.miniature else ""
    parts = [f"{mark}{measurement.outcome.value}: {point}"]
    if measurement.tokens_per_s is not None:
        tilde = "~" if measurement.step_time_derived else ""
        parts.append(f"{figure(measurement.tokens_per_s)}{tilde} tokens/s")
    if measurement.peak_allocated_gib is not None:
        parts.append(f"{figure(measurement.peak_allocated_gib)} GiB")
    if measurement.outcome is not Outcome.OK and measurement.reason:
        words = " ".join(measurement.reason.split())
        parts.append(words if len(words) <= 200 else words[:197] + "...")
    return " | ".join(parts)


def _incumbent(best: Measurement | None) -> str:
    if best is None or best.tokens_per_s is None:
        return "best: none yet"
    point = f"{best.layout.label}, MBS {best.batch.micro_batch}"
    return f"best: {figure(best.tokens_per_s)}{'~' if best.step_time_derived else ''} tokens/s ({point})"


def _outcomes(outcomes: Counter[Outcome]) -> str:
    tried = sum(number for outcome, number in outcomes.items() if outcome is not Outcome.SKIPPED)
    if not tried and not outcomes[Outcome.SKIPPED]:
        return "nothing measured yet"
    each = ", ".join(f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome if outcomes[outcome])
    return f"{plural(tried, 'measurement')}: {each}"


def say(text: str) -> None:
    """One line on standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)


class Budgeted(Protocol):
    """What of a running search its journal does not tell; asked from another thread."""

    def time_left_s(self) -> float:
        """Seconds until a budget ends, infinite without one."""
        ...

    def gpu_left_s(self) -> float:
        """Device seconds that the budget leaves, infinite without one."""
        ...


@contextlib.contextmanager
def followed(journal: Path, search: Budgeted, *, total: int | None) -> Generator[None, None, None]:
    """Tells of a search while it runs: a line for each finished batch point, and one on how the search stands.

    What was in the journal before is counted and not told again. A thread of its own reads it.
    """
    follower = _Follower(journal, search, total)
    thread = threading.Thread(target=follower.work, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        follower.over.set()
        thread.join(timeout=5)


class _Follower:
    def __init__(self, journal: Path, search: Budgeted, total: int | None) -> None:
        self.over = threading.Event()
        self._tail = Tail(journal)
        self._history = History(self._tail.read())
        self._search = search
        self._total = total
        self._layout: Layout | None = None
        self._batch: BatchPoint | None = None
        self._before_s = self._history.wall_s
        self._started_s = time.monotonic()

    def work(self) -> None:
        """Until `over` is set, and once more after it."""
        ended = False
        while not ended:
            ended = self.over.wait(0.5)
            for entry in self._tail.read():
                self._history.extend([entry])
                self._tell(entry)

    def _tell(self, entry: Line) -> None:
        match entry:
            case TrialStart():
                self._layout, self._batch = entry.layout, None
                say(self._line())
            case RungStart():
                self._batch = entry.batch
                say(self._line())
            case Measured(measurement=measurement) if measurement.outcome is not Outcome.SKIPPED:
                said = measurement_line(measurement)
                if self._history.header is not None:
                    said += forecaster_of(self._history.header).beside(measurement, self._history.measurements)
                say(said)
            case _:
                pass

    def _line(self) -> str:
        history = self._history
        left_s, gpu_left_s = self._search.time_left_s(), self._search.gpu_left_s()
        header = history.header
        return progress_line(
            Progress(
                trial=len(history.trials),
                num_trials=self._total,
                layout=self._layout,
                batch=self._batch,
                incumbent=next(iter(winners(history.measurements).values()), None),
                outcomes=count_outcomes(history.measurements),
                elapsed_s=self._before_s + time.monotonic() - self._started_s,
                left_s=left_s if math.isfinite(left_s) else None,
                gpu_s=history.gpu_s,
                gpu_left_s=max(0.0, gpu_left_s) if math.isfinite(gpu_left_s) else None,
                miniature=header is not None and header.miniature,
            )
        )
