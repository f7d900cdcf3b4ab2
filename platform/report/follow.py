"""Reports a running search from its journal on standard error: drawn on a terminal (`live.py`), else as plain lines."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any, Protocol

from platform.common.output import print_line
from platform.common.text import duration
from platform.report.forecast import forecaster_of
from platform.report.live import Screen, is_terminal
from platform.report.progress import (
    SearchProgress,
    TrialProgress,
    count_outcomes,
    measurement_line,
    progress_line,
    set_apart,
)
from platform.report.summary import lag
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.lagging_nodes import sentence_of
from platform.study.result.result import StudyResult
from trainers.records.journal import Lagging, Line, Measured, Peak, RungStart, TrialEnd, TrialStart
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

_MOST_LAST = 6


class Budgeted(Protocol):
    """State of a running search that is not in its journal; called from another thread."""

    def time_left_s(self) -> float:
        """Returns the seconds until a time budget ends; infinite without one."""
        ...

    def gpu_left_s(self) -> float:
        """Returns the device seconds left in the budget; infinite without one."""
        ...

    def kept_s(self) -> float:
        """Returns the part of `time_left_s` that is reserved for confirmation runs."""
        ...


@contextlib.contextmanager
def followed(
    journal: Tail,
    history: History,
    search: Budgeted,
    *,
    total: int | None,
    label: str = "",
) -> Generator[None]:
    """Reports on a search while the `with` block runs.

    On a terminal the state is drawn in place; elsewhere a line is printed for each finished batch point and for the
    search's progress. Lines of `history` count but are not printed again; `journal` yields the later ones. `total` is
    the number of planned trials. If several searches are followed at once, each has a `label` in front of its lines and
    none is drawn.
    """
    follower = _Follower(journal, history, search, total, label)
    screen = Screen() if is_terminal() and not label else None
    thread = threading.Thread(target=follower.work, args=(screen,), name="progress", daemon=True)
    try:
        if screen is not None:
            screen.start()
        thread.start()
        yield
    finally:
        try:
            follower.is_over.set()
            thread.join(timeout=5)
        finally:
            # The terminal gets its cursor back even after a second Ctrl-C.
            if screen is not None:
                screen.stop()


class _Screen(Protocol):
    def draw(self, progress: SearchProgress) -> None: ...


class _Follower:
    def __init__(
        self,
        journal: Tail,
        history: History,
        search: Budgeted,
        total: int | None,
        label: str = "",
    ) -> None:
        self.is_over = threading.Event()
        self._tail = journal
        self._history = history
        self._search = search
        self._total, self._label = total, label
        self._running: dict[str, tuple[TrialStart, TrialProgress, float]] = {}
        """By running trial: its first line, its state, and when it began; the trial with the latest news is last."""
        self._recipe = history.trials[-1].recipe if history.trials else None
        self._trials_s: list[float] = []
        self._counts_cache: tuple[dict[str, Any], Mapping[str, Measurement]] | None = None
        """The measurements' part of the progress, and each recipe's best run; None after a new measurement."""
        self._before_s = self._history.wall_s
        self._started_s = self._last_line_s = time.monotonic()

    def work(self, screen: _Screen | None) -> None:
        """Reports until `is_over` is set, and once more after it."""
        is_last = False
        while not is_last:
            is_last = self.is_over.wait(0.5)
            for entry in self._tail.read():
                self._history.extend([entry])
                self._last_line_s = time.monotonic()
                self._take(entry)
                if screen is None:
                    self._print_entry(entry)
            if screen is not None:
                screen.draw(self._progress())

    def _take(self, entry: Line) -> None:
        match entry:
            case TrialStart():
                state = TrialProgress(
                    layout=entry.layout,
                    ladder=entry.micro_batches,
                    profiles=entry.profiles is not None,
                    nodes=entry.nodes,
                )
                self._running[entry.trial_id] = entry, state, time.monotonic()
                self._recipe = entry.recipe
            case RungStart():
                self._change(entry.trial_id, batch=entry.batch)
            case Measured(measurement=measurement):
                self._change(measurement.trial_id, rung=(measurement.batch.micro_batch, measurement.outcome))
                self._counts_cache = None
            case TrialEnd():
                self._running.pop(entry.trial_id, None)
                self._trials_s.append(entry.wall_s)
            case _:
                pass

    def _change(
        self, trial_id: str, *, batch: BatchPoint | None = None, rung: tuple[int, Outcome] | None = None
    ) -> None:
        """Records a running trial's next rung, or the end of one."""
        if trial_id not in self._running:
            return
        start, state, since_s = self._running.pop(trial_id)
        self._recipe = start.recipe
        rungs = {**state.rungs, **dict([rung] if rung else [])}
        state = dataclasses.replace(state, batch=batch or state.batch, rungs=rungs)
        self._running[trial_id] = start, state, since_s

    def _print_entry(self, entry: Line) -> None:
        match entry:
            case TrialStart() | RungStart():
                print_line(self._label + progress_line(self._progress()))
            case Peak() if self._history.header and (sentence := lag(entry, self._history.header.cluster)):
                print_line(f"{self._label}{sentence} --exclude-slow searches without its node.")
            case Lagging():
                print_line(f"{self._label}{sentence_of(entry)}")
            case Measured(measurement=measurement) if measurement.outcome is not Outcome.SKIPPED:
                sentence = measurement_line(measurement)
                if self._history.header is not None:
                    sentence += forecaster_of(self._history.header).predictions_beside(
                        measurement, self._history.measurements
                    )
                print_line(self._label + sentence)
            case _:
                pass

    def _progress(self) -> SearchProgress:
        history, running = self._history, tuple(self._running.values())
        left_s, gpu_left_s = self._search.time_left_s(), self._search.gpu_left_s()
        header = history.header
        recipe = self._recipe or (header.recipes[0] if header else None)
        counts, incumbents = self._counts()
        # The journal gives the running trials' device seconds only up to its last line.
        num_tried, is_final = self._num_tried(), [start.is_final for start in history.trials]
        # A resumed study may have tried layouts that this session cannot run, which `_total` does not count.
        has_total = self._total is not None and num_tried <= self._total
        now_s = time.monotonic()
        since_s = int(now_s - self._last_line_s) * sum(start.layout.world_size for start, _, _ in running)
        return SearchProgress(
            trial=num_tried,
            num_trials=self._total if has_total else None,
            final_run=sum(is_final) if is_final and is_final[-1] else 0,
            running=tuple(dataclasses.replace(state, running_s=now_s - began_s) for _, state, began_s in running),
            elapsed_s=self._before_s + time.monotonic() - self._started_s,
            left_s=left_s if math.isfinite(left_s) else None,
            kept_s=self._search.kept_s(),
            gpu_s=history.gpu_s + since_s,
            gpu_left_s=max(0.0, gpu_left_s) if math.isfinite(gpu_left_s) else None,
            device=header.cluster.device_word if header else "device",
            title=header.title if header else "",
            recipe=set_apart(recipe, header.recipes) if recipe and header and len(header.recipes) > 1 else "",
            incumbent=incumbents.get(recipe.id) if recipe else None,
            to_go=self._to_go(),
            lagging=tuple(history.lagging),
            miniature=header is not None and header.miniature,
            **counts,
        )

    def _counts(self) -> tuple[dict[str, Any], Mapping[str, Measurement]]:
        # Cached: the screen is drawn twice a second, and ten thousand measurements take a good part of that time.
        if self._counts_cache is None:
            measurements = self._history.measurements
            measured = [measurement for measurement in measurements if measurement.outcome is not Outcome.SKIPPED]
            last = tuple(measured[-_MOST_LAST:])
            forecaster = forecaster_of(self._history.header) if self._history.header else None
            counts = {
                "outcomes": count_outcomes(measurements),
                "last": last,
                "predicted": forecaster.predictions(last) if forecaster else (),
                "model_error": forecaster.error(measured) if forecaster else "",
            }
            leaders = {key: recipe_result.leader for key, recipe_result in StudyResult.of(self._history).by_id.items()}
            self._counts_cache = counts, {key: leader.main_run for key, leader in leaders.items() if leader is not None}
        return self._counts_cache

    def _num_tried(self) -> int:
        """Returns the number of layouts tried; one whose trial was started again counts once."""
        return len({trial.key for trial in self._history.trials if not trial.is_final})

    def _to_go(self) -> str:
        if self._total is None or not self._trials_s:
            return ""
        num_running = len(self._running)
        num_trials_left = max(0, self._total - self._num_tried() + num_running)
        return duration(num_trials_left * sum(self._trials_s) / len(self._trials_s) / max(1, num_running))
