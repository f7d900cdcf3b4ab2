"""`Watchdog`: a thread in each worker that ends the process if a micro-step is overdue."""

import os
import threading
import time
from collections.abc import Callable

EXIT_CODE = 86


class Watchdog:
    """Ends the process if the next beat does not come in time.

    The limit is max(`floor_s`, 10 x the slowest phase so far), plus the time of phases that were given to the device
    and not yet awaited. A phase is a micro-step, or a whole schedule if the engine interleaves micro-steps. The
    watchdog makes no calls to the device, so a hung collective cannot block it.
    """

    def __init__(self, *, floor_s: float, on_hang: Callable[[str, float], None]) -> None:
        self._floor_s = floor_s
        self._on_hang = on_hang
        self._slowest_s = 0.0
        self._lock = threading.Lock()
        self._activity = "start"
        self._since = time.monotonic()
        self._until: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @property
    def allowance_s(self) -> float:
        """Seconds without a beat after which the trial counts as hung."""
        return max(self._floor_s, 10 * self._slowest_s)

    def saw(self, phase_s: float) -> None:
        self._slowest_s = max(self._slowest_s, phase_s)

    def beat(self, activity: str, *, allowed_s: float | None = None, pending: int = 0) -> None:
        """Records the worker's activity. The next beat must come within `allowed_s`, or within the allowance if None,
        plus the time of `pending` phases.
        """
        allowed = self.allowance_s if allowed_s is None else allowed_s
        with self._lock:
            self._activity = activity
            self._since = time.monotonic()
            self._until = self._since + allowed + pending * self._slowest_s

    def pause(self) -> None:
        """Stops watching until the next beat."""
        with self._lock:
            self._until = None

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.5):
            with self._lock:
                late = self._until is not None and time.monotonic() > self._until
                activity, waited_s = self._activity, time.monotonic() - self._since
            if late:
                try:
                    self._on_hang(activity, waited_s)
                finally:
                    os._exit(EXIT_CODE)
