"""The progress of a training: one live line on a terminal, else a line at intervals."""

import sys
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from platform.common.output import print_line
from platform.common.text import count, duration, figure
from trainers.records.training import Begun, NotSaved, Record, Saved, Saving, SetAside, Steps, TrainingPlan, Validated

_LINE_EVERY_S = 30.0
_RECENT_S = 60.0
"""Seconds over which rate and remaining time are computed."""


class TrainingProgress:
    """A display of records as they arrive."""

    def __init__(self, plan: TrainingPlan) -> None:
        self._plan = plan
        self._recent: deque[Steps] = deque()
        self._last: Steps | None = None
        self._validated: Validated | None = None
        self._last_line_s = -_LINE_EVERY_S
        self.writing = ""
        """The state of the checkpoint being written, as a clause."""
        self._live = None
        if sys.stderr.isatty():
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, refresh_per_second=4, transient=True)
            self._live.start()

    def close(self) -> None:
        """Ends the live display and prints its last line."""
        if self._live is not None:
            self._live.stop()
        if self._last is not None:
            print_line(self.line())

    def print_line(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text)
        else:
            print_line(text)

    def add(self, records: list[Record]) -> None:
        for record in records:
            match record:
                case Begun():
                    self._recent.clear()
                    begin_text = f"from step {record.step}" if record.step else "from the beginning"
                    after = duration(record.startup_s)
                    self.print_line(f"It trains {begin_text} with {record.layout}, {after} after the workers' start.")
                case Steps():
                    self._last = record
                    self._recent.append(record)
                    while sum(steps.steps_s for steps in self._recent) - self._recent[0].steps_s > _RECENT_S:
                        self._recent.popleft()
                case Validated():
                    self._validated = record
                case NotSaved():
                    self.print_line(
                        f"A checkpoint after step {record.step} cannot be written ({record.reason}); the one before"
                        " it is still there: make room."
                    )
                case SetAside():
                    self.print_line(f"The checkpoint {record.name} is not used: {record.reason}")
                case Saving() | Saved():
                    pass
        if self._last is None:
            return
        if self._live is not None:
            self._live.update(Text(self.line(), no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            print_line(self.line())

    @property
    def tokens_per_s(self) -> float:
        """Throughput over the last minute of steps."""
        seconds = sum(steps.steps_s for steps in self._recent)
        return sum(len(steps.losses) * steps.tokens_per_step for steps in self._recent) / seconds if seconds else 0.0

    def _trained(self) -> str:
        """Returns text on the rate of tokens with a loss; "" if all tokens have one."""
        trained = [steps.trained_tokens for steps in self._recent if steps.trained_tokens is not None]
        seconds = sum(steps.steps_s for steps in self._recent)
        return f" ({figure(sum(trained) / seconds)} trained on)" if trained and seconds else ""

    def line(self) -> str:
        """Returns the line: tokens, step, losses, rate and remaining time."""
        last = self._last
        assert last is not None
        remaining_tokens = max(0, self._plan.tokens - last.tokens)
        parts = [
            f"{min(1.0, last.tokens / self._plan.tokens):.1%} of {count(self._plan.tokens)} tokens",
            f"step {last.last_step:,}",
            f"loss {last.losses[-1]:.4f}",
        ]
        if self._validated is not None:
            parts.append(f"held out {self._validated.loss:.4f}")
            if fullest := self._validated.fullest:
                parts.append(f"fullest expert {max(fullest):.1f} x the mean, {sum(self._validated.empty)} empty")
        if self._recent:  # empty after a restart
            parts.append(f"{figure(self.tokens_per_s)} tokens/s{self._trained()}")
        if remaining_tokens and self.tokens_per_s:
            parts.append(f"{duration(remaining_tokens / self.tokens_per_s)} left")
        return ", ".join([*parts, *filter(None, [self.writing])])
