"""How a search stands, followed in its journal: drawn on a terminal (`live.py`), in plain lines where there is none.

All of it goes to standard error.
"""

import contextlib
import dataclasses
import math
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Protocol

from platform.common.say import say
from platform.common.text import duration, figure, plural
from platform.finals.result import Result
from platform.reports.forecast import forecaster_of
from platform.reports.summary import lag, pipeline_words
from platform.study.history import History
from platform.study.journal import Tail
from trainers.values.batch import BatchPoint
from trainers.values.journal import Line, Measured, Peak, RungStart, TrialEnd, TrialStart
from trainers.values.layout import Layout
from trainers.values.measurement import Measurement, Outcome
from trainers.values.recipe import Recipe

_MOST_LAST = 6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What is told of a search."""

    trial: int
    """Number of the running trial, from 1; 0 before the first."""
    num_trials: int | None
    """Trials planned in all; None where the searcher has no plan."""
    layout: Layout | None
    """The running trial's; None between trials."""
    batch: BatchPoint | None
    """The running rung; None before the trial's first."""
    incumbent: Measurement | None
    """Of the recipe that is being searched."""
    outcomes: Counter[Outcome]
    elapsed_s: float
    left_s: float | None
    """Seconds that the time budget leaves; None without one."""
    gpu_s: float
    gpu_left_s: float | None = None
    """Device seconds that the budget leaves; None without one."""
    device: str = "GPU"
    """What a device is called."""
    title: str = ""
    """What is searched, and on what."""
    recipe: str = ""
    """Which recipe is being searched, by what sets it apart; "" where there is one alone."""
    ladder: tuple[int, ...] = ()
    """The running trial's micro-batches."""
    profiles: bool = False
    """Whether the running trial profiles, in place of measuring."""
    rungs: Mapping[int, Outcome] = dataclasses.field(default_factory=dict[int, Outcome])
    """Micro-batch -> outcome of the running trial's finished rungs."""
    running_s: float = 0.0
    """Seconds that the running trial has taken."""
    to_go: str = ""
    """Estimated from the trials so far: what the remaining ones will take; "" before the first ended."""
    last: tuple[Measurement, ...] = ()
    """What was measured last, in order; no more than a screen takes."""
    predicted: tuple[str, ...] = ()
    """What the cost model said of each of `last`; empty where it knows no such device."""
    model_error: str = ""
    """How wrong it is so far; "" where nothing is known."""
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
        starting = "starting" if progress.ladder else "to be profiled" if progress.profiles else "numerics gate"
        rung = starting if progress.batch is None else f"MBS {progress.batch.micro_batch} x {progress.batch.grad_accum}"
        parts[0] += f": {progress.layout.label}, {rung}"
    parts.append(f"best{progress.recipe and f' of {progress.recipe}'}: {best_point(progress.incumbent)}")
    parts.append(_outcomes(progress.outcomes))
    parts.append(spent(progress))
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
        parts.append(f"{figure(measurement.peak_allocated_gib)} GiB{pipeline_words(measurement)}")
    if measurement.outcome is not Outcome.OK and measurement.reason:
        words = " ".join(measurement.reason.split())
        parts.append(words if len(words) <= 200 else words[:197] + "...")
    return " | ".join(parts)


def spent(progress: Progress) -> str:
    """Time and device seconds, and what the budgets leave of them."""
    time = duration(progress.elapsed_s)
    if progress.left_s is not None:
        time += f", {duration(progress.left_s)} left"
    gpu = f"{figure(progress.gpu_s)} {progress.device}-s"
    return f"{time} | {gpu}" if progress.gpu_left_s is None else f"{time} | {gpu}, {figure(progress.gpu_left_s)} left"


def best_point(best: Measurement | None) -> str:
    """The incumbent's speed and what it is."""
    if best is None or best.tokens_per_s is None:
        return "none yet"
    point = f"{best.layout.label}, MBS {best.batch.micro_batch}"
    return f"{figure(best.tokens_per_s)}{'~' if best.step_time_derived else ''} tokens/s ({point})"


def set_apart(recipe: Recipe, others: Iterable[Recipe]) -> str:
    """The words of the recipe's label that not all of the `others` have; all of them where that leaves none."""
    words = recipe.label.split(", ")
    shared = set(words).intersection(*(each.label.split(", ") for each in others))
    return ", ".join(word for word in words if word not in shared) or recipe.label


def _outcomes(outcomes: Counter[Outcome]) -> str:
    tried = sum(number for outcome, number in outcomes.items() if outcome is not Outcome.SKIPPED)
    if not tried and not outcomes[Outcome.SKIPPED]:
        return "nothing measured yet"
    each = ", ".join(f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome if outcomes[outcome])
    return f"{plural(tried, 'measurement')}: {each}"


class Budgeted(Protocol):
    """What of a running search its journal does not tell; asked from another thread."""

    def time_left_s(self) -> float:
        """Seconds until a budget ends, infinite without one."""
        ...

    def gpu_left_s(self) -> float:
        """Device seconds that the budget leaves, infinite without one."""
        ...


@contextlib.contextmanager
def followed(
    journal: Tail,
    history: History,
    search: Budgeted,
    *,
    total: int | None,
) -> Generator[None]:
    """Tells of a search while it runs, until the end of the `with`.

    On a terminal it is drawn in place; elsewhere there is a line for each finished batch point, and one on how the
    search stands. What `history` says is counted and not told again; `journal` gives what comes after. `total` is the
    number of trials planned.
    """
    # Here and not above: what draws needs `Progress`.
    from platform.reports.live import Screen, is_terminal

    follower = _Follower(journal, history, search, total)
    screen = Screen() if is_terminal() else None
    thread = threading.Thread(target=follower.work, args=(screen,), name="progress", daemon=True)
    try:
        if screen is not None:
            screen.start()
        thread.start()
        yield
    finally:
        try:
            follower.over.set()
            thread.join(timeout=5)
        finally:
            # Whatever happens, a second Ctrl-C too: the terminal gets its cursor back.
            if screen is not None:
                screen.stop()


class _Screen(Protocol):
    def draw(self, progress: Progress) -> None: ...


class _Follower:
    def __init__(
        self,
        journal: Tail,
        history: History,
        search: Budgeted,
        total: int | None,
    ) -> None:
        self.over = threading.Event()
        self._tail = journal
        self._history = history
        self._search = search
        self._total = total
        self._trial: TrialStart | None = None
        self._recipe = history.trials[-1].recipe if history.trials else None
        """The last trial's."""
        self._trial_started_s = 0.0
        self._batch: BatchPoint | None = None
        self._rungs: dict[int, Outcome] = {}
        self._trials_s: list[float] = []
        self._counted: tuple[dict[str, Any], Mapping[str, Measurement]] | None = None
        """What of the progress the measurements say, and each recipe's best; None once something new was measured."""
        self._before_s = self._history.wall_s
        self._started_s = self._last_line_s = time.monotonic()

    def work(self, screen: _Screen | None) -> None:
        """Until `over` is set, and once more after it."""
        ended = False
        while not ended:
            ended = self.over.wait(0.5)
            for entry in self._tail.read():
                self._history.extend([entry])
                self._last_line_s = time.monotonic()
                self._take(entry)
                if screen is None:
                    self._tell(entry)
            if screen is not None:
                screen.draw(self._progress())

    def _take(self, entry: Line) -> None:
        match entry:
            case TrialStart():
                self._trial, self._batch, self._rungs = entry, None, {}
                self._recipe = entry.recipe
                self._trial_started_s = time.monotonic()
            case RungStart():
                self._batch = entry.batch
            case Measured(measurement=measurement):
                self._rungs[measurement.batch.micro_batch] = measurement.outcome
                self._counted = None
            case TrialEnd():
                self._trial, self._batch = None, None
                self._trials_s.append(entry.wall_s)
            case _:
                pass

    def _tell(self, entry: Line) -> None:
        match entry:
            case TrialStart() | RungStart():
                say(progress_line(self._progress()))
            case Peak() if self._history.header and (sentence := lag(entry, self._history.header.cluster)):
                say(f"{sentence} --exclude-slow searches without its node.")
            case Measured(measurement=measurement) if measurement.outcome is not Outcome.SKIPPED:
                sentence = measurement_line(measurement)
                if self._history.header is not None:
                    sentence += forecaster_of(self._history.header).beside(measurement, self._history.measurements)
                say(sentence)
            case _:
                pass

    def _progress(self) -> Progress:
        history, trial = self._history, self._trial
        left_s, gpu_left_s = self._search.time_left_s(), self._search.gpu_left_s()
        header = history.header
        recipe = self._recipe or (header.recipes[0] if header else None)
        counts, incumbents = self._counts()
        # The journal tells of the running trial's device seconds up to its last line.
        since_s = int(time.monotonic() - self._last_line_s) * trial.layout.world_size if trial else 0
        return Progress(
            trial=len(history.trials),
            num_trials=self._total,
            layout=trial.layout if trial else None,
            batch=self._batch,
            elapsed_s=self._before_s + time.monotonic() - self._started_s,
            left_s=left_s if math.isfinite(left_s) else None,
            gpu_s=history.gpu_s + since_s,
            gpu_left_s=max(0.0, gpu_left_s) if math.isfinite(gpu_left_s) else None,
            device=header.cluster.device_word if header else "device",
            title=header.title if header else "",
            recipe=set_apart(recipe, header.recipes) if recipe and header and len(header.recipes) > 1 else "",
            incumbent=incumbents.get(recipe.id) if recipe else None,
            ladder=trial.micro_batches if trial else (),
            profiles=trial is not None and trial.profiles is not None,
            rungs=dict(self._rungs),
            running_s=time.monotonic() - self._trial_started_s,
            to_go=self._to_go(),
            miniature=header is not None and header.miniature,
            **counts,
        )

    def _counts(self) -> tuple[dict[str, Any], Mapping[str, Measurement]]:
        # Twice a second it is drawn; to go through ten thousand measurements takes a good part of that.
        if self._counted is None:
            measurements = self._history.measurements
            measured = [each for each in measurements if each.outcome is not Outcome.SKIPPED]
            last = tuple(measured[-_MOST_LAST:])
            forecaster = forecaster_of(self._history.header) if self._history.header else None
            counts = {
                "outcomes": count_outcomes(measurements),
                "last": last,
                "predicted": forecaster.predictions(last) if forecaster else (),
                "model_error": forecaster.error(measured) if forecaster else "",
            }
            leaders = {key: each.leader for key, each in Result.of(self._history).by_id.items()}
            self._counted = counts, {key: leader.shown for key, leader in leaders.items() if leader is not None}
        return self._counted

    def _to_go(self) -> str:
        if self._total is None or not self._trials_s:
            return ""
        left = max(0, self._total - len(self._history.trials) + (self._trial is not None))
        return duration(left * sum(self._trials_s) / len(self._trials_s))
