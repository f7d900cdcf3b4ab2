"""A line of progress on standard error while an answer takes longer than a moment."""

import contextlib
import sys
import threading
import time

FIRST_S = 1.0
"""Seconds of computing after which the line is printed: imports take another one before."""
_EVERY_S = 1.0
"""Seconds between its changes in a terminal; elsewhere it is printed once."""


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Prints that an answer is being computed, and for how long; it ends by `end`, before the answer is printed."""

    def __init__(self, subject: str) -> None:
        self._subject, self._begun, self._ended = subject, time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Takes the line away, or leaves it out."""
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
