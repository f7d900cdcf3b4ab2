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
from platform.report.progress import SearchProgress, best_point, kept_words, spent
from trainers.records.measurement import Measurement, Outcome

_LABEL = 9
"""Width of the labels on the left."""
_OTHER_ROWS = 10
"""Lines of a frame beyond those of the last outcomes."""


def is_terminal() -> bool:
    """Returns whether standard error is a terminal that can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """The lower part of the terminal, from `start` to `stop`; what is printed meanwhile appears above it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def start(self) -> None:
        """Takes the terminal."""
        self._live.start()

    def draw(self, progress: SearchProgress) -> None:
        """Draws the current state at the terminal's current width."""
        self._live.update(frame(progress, height=self._console.height), refresh=True)

    def stop(self) -> None:
        """Releases the terminal and shows its cursor; the last frame stays. Stopping twice does nothing."""
        self._live.stop()


def frame(progress: SearchProgress, *, height: int) -> RenderableType:
    """Returns what is drawn: a line for each item, cut at the terminal's edge."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=_LABEL, no_wrap=True, style="dim")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    other_rows = _OTHER_ROWS + bool(progress.model_error) + bool(kept_words(progress))
    most_last = max(1, min(6, (height - other_rows) // (2 if progress.predicted else 1)))
    for label, value in _rows(progress, most_last=most_last):
        table.add_row(label, value)
    mark = "MINIATURE  " if progress.miniature else ""
    head = Text(f"{mark}{progress.title}", style="bold", no_wrap=True, overflow="ellipsis")
    # The cursor rests on the empty line: the ^C that a terminal echoes there moves nothing.
    return Group(Text(), head, table, Text())


def _rows(progress: SearchProgress, *, most_last: int) -> Iterator[tuple[str, RenderableType]]:
    yield "trials", _trials(progress)
    time = spent(progress)
    if progress.left_s is None and progress.to_go:
        time += f", about {progress.to_go} to go"
    yield "time", Text(time)
    if words := kept_words(progress):
        yield "", Text(words)
    yield "running", Text("no trial" if progress.layout is None else progress.layout.label)
    yield "", _ladder(progress)
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
    completed = progress.trial - (progress.layout is not None)
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


def _ladder(progress: SearchProgress) -> Text:
    """Returns the running trial's micro-batches: the outcome of each, the running one, and those to come."""
    line = Text()
    if progress.layout is None:
        return line
    if not progress.ladder:
        line.append("profile" if progress.profiles else "numerics gate")
    elif progress.batch is None:
        line.append("starting; ")
    line.append("micro-batch " if progress.ladder else "")
    for number, micro_batch in enumerate(progress.ladder):
        line.append(", " if number else "")
        outcome = progress.rungs.get(micro_batch)
        if outcome is not None:
            line.append(f"{micro_batch} {outcome}", style=_style(outcome))
        elif progress.batch is not None and progress.batch.micro_batch == micro_batch:
            again = " again in fresh processes" if progress.final_run else ""
            line.append(f"{micro_batch} x {progress.batch.grad_accum} runs{again}", style="bold")
        else:
            line.append(f"{micro_batch}", style="dim")
    line.append(f"; {progress.running_s:.0f} s", style="dim")
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
