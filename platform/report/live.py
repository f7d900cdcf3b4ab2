"""Draws a running search in place on a terminal: `frame` makes the content, `Screen` draws it."""

import os
import sys
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from platform.common.text import figure, plural
from platform.report.console import STYLES
from platform.report.progress import SearchProgress, TrialProgress, best_point, kept_words, spent
from trainers.records.measurement import Measurement, Outcome

_LABEL = 9
"""Width of the labels on the left, in characters."""
_OTHER_ROWS = 10
"""Lines of a frame without those of the last outcomes."""


def is_terminal() -> bool:
    """Returns whether standard error is a terminal that can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """The lower part of the terminal from `start` to `stop`; printed lines appear above it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def start(self) -> None:
        self._live.start()

    def draw(self, progress: SearchProgress) -> None:
        """Draws the state at the terminal's present width."""
        self._live.update(frame(progress, height=self._console.height), refresh=True)

    def stop(self) -> None:
        """Releases the terminal and shows its cursor; the last frame stays. Stopping twice does nothing."""
        self._live.stop()


def frame(progress: SearchProgress, *, height: int) -> RenderableType:
    """Returns the drawing: a line for each item, cut at the terminal's edge."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=_LABEL, no_wrap=True, style="dim")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    most_lanes = max(2, min(len(progress.running), (height - _OTHER_ROWS) // 2))
    lane_rows = min(len(progress.running), most_lanes + 1) - 2 if len(progress.running) > 2 else 0
    other_rows = (
        _OTHER_ROWS + bool(progress.model_error) + bool(kept_words(progress)) + bool(progress.lagging) + lane_rows
    )
    most_last = max(1, min(6, (height - other_rows) // (2 if progress.predicted else 1)))
    for label, value in _rows(progress, most_last=most_last, most_lanes=most_lanes):
        table.add_row(label, value)
    mark = "MINIATURE  " if progress.miniature else ""
    head = Text(f"{mark}{progress.title}", style="bold", no_wrap=True, overflow="ellipsis")
    # The cursor stays on the empty line, so an echoed ^C moves nothing.
    return Group(Text(), head, table, Text())


def _rows(progress: SearchProgress, *, most_last: int, most_lanes: int) -> Iterator[tuple[str, RenderableType]]:
    yield "trials", _trials(progress)
    time = spent(progress)
    if progress.left_s is None and progress.to_go:
        time += f", about {progress.to_go} to go"
    yield "time", Text(time)
    if words := kept_words(progress):
        yield "", Text(words)
    if len(progress.running) < 2:
        trial = progress.running[0] if progress.running else None
        yield "running", Text("no trial" if trial is None else trial.layout.label)
        yield "", Text() if trial is None else _ladder(trial, is_final=bool(progress.final_run))
    else:
        for number, trial in enumerate(progress.running[:most_lanes]):
            yield "" if number else "running", _lane(trial)
        if more := len(progress.running[most_lanes:]):
            yield "", Text(f"and {more} more", style="dim")
    if progress.lagging:
        yield "left out", Text(f"{', '.join(progress.lagging)}, slower than the other nodes")
    of_recipe = progress.recipe and f"of {progress.recipe}: "
    yield "best", Text(of_recipe + best_point(progress.incumbent), style="bold green" if progress.incumbent else "")
    yield "outcomes", _outcomes(progress)
    predictions = progress.predicted or ("",) * len(progress.last)
    last = list(zip(progress.last, predictions, strict=True))
    for number, (measurement, prediction) in enumerate(last[: -most_last - 1 : -1]):
        yield "last" if not number else "", _finished(measurement)
        if prediction:
            yield "", Text(f"        predicted {prediction}", style="dim")
    if progress.model_error:
        yield "model", Text(f"error so far {progress.model_error}")


def _trials(progress: SearchProgress) -> RenderableType:
    completed = progress.trial - len(progress.running)
    planned = progress.num_trials
    of_planned = "" if planned is None else f" of {planned}"
    if progress.final_run:
        return Text(f"{progress.trial}{of_planned} searched, {plural(progress.final_run, 'final run')}")
    if planned is None:
        return Text(f"{progress.trial}")
    line = Table.grid(padding=(0, 1, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_row(f"{progress.trial}{of_planned}", ProgressBar(total=max(planned, 1), completed=completed, width=None))
    return line


def _lane(trial: TrialProgress) -> Text:
    """Returns the line of one of several running trials: its nodes, progress and layout."""
    line = Text(f"{', '.join(trial.nodes)}  ", style="dim")
    line.append_text(_ladder(trial, is_final=False))
    line.append(f"  {trial.layout.label}")
    return line


def _ladder(trial: TrialProgress, *, is_final: bool) -> Text:
    """Returns a running trial's micro-batches: outcomes of finished ones, the running one, and the rest."""
    line = Text()
    if not trial.ladder:
        line.append("profile" if trial.profiles else "numerics gate")
    elif trial.batch is None:
        line.append("starting; ")
    line.append("micro-batch " if trial.ladder else "")
    for number, micro_batch in enumerate(trial.ladder):
        line.append(", " if number else "")
        outcome = trial.rungs.get(micro_batch)
        if outcome is not None:
            line.append(f"{micro_batch} {outcome}", style=_style(outcome))
        elif trial.batch is not None and trial.batch.micro_batch == micro_batch:
            again = " again in fresh processes" if is_final else ""
            line.append(f"{micro_batch} x {trial.batch.grad_accum} runs{again}", style="bold")
        else:
            line.append(f"{micro_batch}", style="dim")
    line.append(f"; {trial.running_s:.0f} s", style="dim")
    return line


def _outcomes(progress: SearchProgress) -> Text:
    line = Text()
    for outcome in Outcome:
        if number := progress.outcomes[outcome]:
            line.append(", " if line else "")
            line.append(f"{number} {outcome}", style=_style(outcome))
    return line or Text("none yet")


def _finished(measurement: Measurement) -> Text:
    tilde = "~" if measurement.step_time_derived else ""
    speed = "" if measurement.tokens_per_s is None else f"{figure(measurement.tokens_per_s)}{tilde} tokens/s"
    memory = "" if measurement.peak_allocated_gib is None else f"{figure(measurement.peak_allocated_gib)} GiB"
    line = Text(f"{measurement.outcome:<7}", style=_style(measurement.outcome))
    run = f", run {measurement.repeat}" if measurement.repeat else ""
    point = f"MBS {measurement.batch.micro_batch}{run}: {measurement.layout.label}"  # a narrow terminal cuts the end
    line.append(f"{speed:>16} {memory:>9}  {point}" if speed else point, style="none")
    if measurement.outcome is not Outcome.OK and measurement.reason:
        line.append(f": {' '.join(measurement.reason.split())}", style="dim")
    return line


def _style(outcome: Outcome) -> str:
    return "green" if outcome is Outcome.OK else STYLES.get(outcome, "red")
