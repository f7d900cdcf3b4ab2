"""Prints a progress line on standard error while a computation takes more than a second."""

import contextlib
import sys
import threading
import time

FIRST_S = 1.0
"""Seconds of computing before the line appears. Imports take about another second before."""
_EVERY_S = 1.0
"""Seconds between updates in a terminal. Elsewhere the line is printed once."""


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Prints a subject and its elapsed seconds until `end`, which must be called before the result is printed."""

    def __init__(self, subject: str) -> None:
        self._subject, self._begun, self._ended = subject, time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self) -> None:
        if self._ended.wait(FIRST_S):
            return
        if not sys.stderr.isatty():
            print(self._line(), file=sys.stderr, flush=True)
            return
        shown = False
        while not (shown and self._ended.wait(_EVERY_S)):
            print(f"\r{self._line()}\033[K", end="", file=sys.stderr, flush=True)
            shown = True
        print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _line(self) -> str:
        return f"{self._subject}, {time.monotonic() - self._begun:.0f} s so far"
