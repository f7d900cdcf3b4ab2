"""Shows the progress of a run on standard error: a bar on a terminal, else a line at intervals."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from platform.common.output import print_line
from platform.common.text import duration, figure

_LINE_EVERY_S = 10.0


class PrepareProgress:
    """Shows share, rate and remaining time of a run that reads `total_bytes` of input."""

    def __init__(self, *, total_bytes: int, num_shards: int, num_done: int) -> None:
        self._total_bytes, self._num_shards = max(1, total_bytes), num_shards
        self._began_s = self._shown_s = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True))
            self._task = self._bar.add_task("starting the workers", total=self._total_bytes)
        if num_done:
            print_line(f"{num_done} of {num_shards} files are there from an earlier run.")

    @property
    def interval_s(self) -> float:
        return 0.2 if self._bar else 1.0

    def __enter__(self) -> "PrepareProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, input_bytes: int, tokens: int, num_shards: int) -> None:
        """Shows the progress: input bytes and tokens of this run, and the total number of finished files."""
        now_s = time.monotonic()
        text = self._text(min(1.0, input_bytes / self._total_bytes), tokens, num_shards, now_s - self._began_s)
        if self._bar:
            self._bar.update(self._task, completed=input_bytes, description=text)
        elif now_s - self._shown_s >= _LINE_EVERY_S or num_shards == self._num_shards:
            self._shown_s = now_s
            print_line(text)

    def _text(self, share: float, tokens: int, num_shards: int, elapsed_s: float) -> str:
        left_text = "" if share == 0 else f", {duration(elapsed_s * (1 - share) / share)} left"
        return (
            f"{share:.0%}, file {num_shards} of {self._num_shards}, {tokens:,} tokens,"
            f" {figure(tokens / max(elapsed_s, 1e-3))} tokens/s{left_text}"
        )
