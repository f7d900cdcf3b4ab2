"""The steps that a command reports while it runs: lines of JSON in a file, or printed lines that match a pattern."""

import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainers.spec.codec import json_object

_STYLE = re.compile(r"\x1b\[[0-9;:]*m")
"""Codes of a terminal for colours and weights of letters."""


def text_of(printed: bytes) -> str:
    """Returns what a command printed as text without colours."""
    return _STYLE.sub("", printed.decode(errors="replace"))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step as the command reported it."""

    at_s: float
    """Moment at which its line was seen, by the monotonic clock."""
    tokens: int | None = None
    """Tokens over all devices; None if the line does not state them."""
    seconds: float | None = None
    loss: float | None = None


class StepLineError(ValueError):
    """The line is no step; the text states why."""


class StepReader:
    """Reads the lines of a run's steps as they appear."""

    def __init__(self, *, file: Path, log: Path, step_line: str) -> None:
        self._path, self._pattern = (log, re.compile(step_line)) if step_line else (file, None)
        self._place, self._unfinished = 0, b""
        self._looked_s = time.monotonic()

    def new(self) -> list[Step]:
        """Returns the steps whose lines were completed since the last call.

        Raises:
            StepLineError: a line of the file is not a step.
        """
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._place:  # the script began the file anew
                    self._place, self._unfinished = 0, b""
                file.seek(self._place)
                data = file.read()
        except FileNotFoundError:  # or takes it away to write another
            self._place, self._unfinished = 0, b""
            return []
        self._place += len(data)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        return self._spread(lines)

    def last(self) -> list[Step]:
        """Returns the steps since the last call once no more will come: the last line may lack its end.

        Raises:
            StepLineError: a line of the file is not a step.
        """
        steps = self.new()
        line, self._unfinished = self._unfinished, b""
        return [*steps, *self._spread([line])]

    def _spread(self, lines: list[bytes]) -> list[Step]:
        """Returns the steps of the lines, their moments spread evenly since the look before: a busy machine may see
        several at once, which did not take no time.
        """
        before_s, self._looked_s = self._looked_s, time.monotonic()
        steps = list(self._steps(lines, self._looked_s))
        between_s = (self._looked_s - before_s) / max(len(steps), 1)
        return [
            dataclasses.replace(step, at_s=before_s + number * between_s) for number, step in enumerate(steps, start=1)
        ]

    def _steps(self, lines: list[bytes], at_s: float) -> Iterator[Step]:
        for raw in lines:
            text = text_of(raw)
            if self._pattern is None:
                if text.strip():
                    yield _of_json(text, at_s)
            elif match := self._pattern.search(text):
                groups = {name: value for name, value in match.groupdict().items() if value is not None}
                yield _of(groups, at_s, text)


def _of_json(text: str, at_s: float) -> Step:
    try:
        fields = json_object(text)
    except ValueError:
        fields = {}
    if "tokens" not in fields:
        raise StepLineError(
            f'a step is reported as {{"tokens": 4096, "s": 0.25, "loss": 3.1}}, got the line {text[:80]!r}'
        )
    return _of(fields, at_s, text)


def _of(fields: dict[str, Any], at_s: float, text: str) -> Step:
    try:
        tokens = None if fields.get("tokens") is None else float(str(fields["tokens"]).replace(",", ""))
        seconds = None if fields.get("s") is None else float(fields["s"])
        loss = None if fields.get("loss") is None else float(fields["loss"])
    except (TypeError, ValueError) as error:
        raise StepLineError(f"tokens, s and loss of a step are numbers, got the line {text[:80]!r}") from error
    if tokens is not None and not (tokens > 0 and tokens.is_integer()):
        raise StepLineError(f"the tokens of a step are a whole number above 0, got the line {text[:80]!r}")
    if seconds is not None and not 0 < seconds < math.inf:
        raise StepLineError(f"the seconds of a step are a number above 0, got the line {text[:80]!r}")
    return Step(at_s=at_s, tokens=None if tokens is None else int(tokens), seconds=seconds, loss=loss)
