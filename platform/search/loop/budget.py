"""A session's budget and spending."""

import dataclasses
import math
import time
from collections.abc import Callable

from platform.common.text import plural


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits after which a session ends by itself; None for no limit. Each session of a study has a new budget."""

    max_trials: int | None = None
    time_s: float | None = None
    gpu_s: float | None = None
    of_space: bool = False
    """Whether `time_s` is the space's default and not the user's."""

    @property
    def time_words(self) -> str:
        """The origin of `time_s`, in brackets."""
        return "(the space's own budget: --time-budget sets another)" if self.of_space else "(--time-budget)"


class Spending:
    """Counts a session's time and device seconds over all trials, which may run side by side."""

    def __init__(self, budget: Budget, *, num_devices: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts to count. Ray runs already, so its start is in no budget."""
        self.budget = budget
        self.num_devices = num_devices
        self._clock = clock
        self._started_s = clock()
        self._ended_gpu_s = 0.0
        self._num_searched = 0
        """Number of the search's trials."""
        self._running: dict[str, tuple[int, float, float]] = {}
        """By trial that runs: its devices, when it began, and the seconds that it is expected to take."""
        self._kept_s = 0.0

    def begin(self, trial_id: str, num_devices: int, *, searches: bool = False, expected_s: float = 0.0) -> None:
        """Begins a trial on `num_devices`, which either `searches` or is a final run, and is expected to take
        `expected_s` (0 where nothing is known).
        """
        self._running[trial_id] = (num_devices, self._clock(), expected_s)
        self._num_searched += searches

    def end(self, trial_id: str) -> tuple[float, float]:
        """Ends a trial; returns its seconds and its device seconds."""
        num_devices, since_s, _ = self._running.pop(trial_id)
        wall_s = self._clock() - since_s
        self._ended_gpu_s += wall_s * num_devices
        return wall_s, wall_s * num_devices

    @property
    def gpu_s(self) -> float:
        """Device seconds of this session, including those of the running trials."""
        running = tuple(self._running.values())  # a copy, because the progress thread reads this while a trial begins
        return self._ended_gpu_s + sum(devices * (self._clock() - since_s) for devices, since_s, _ in running)

    def gpu_left_s(self) -> float:
        """Returns the device seconds left in the budget; infinite without one."""
        return math.inf if self.budget.gpu_s is None else self.budget.gpu_s - self.gpu_s

    def time_left_s(self) -> float:
        """Returns the seconds until a budget ends; infinite without one."""
        return min(self.gpu_left_s() / self.num_devices, self._wall_left_s())

    def _wall_left_s(self) -> float:
        return math.inf if self.budget.time_s is None else self.budget.time_s - (self._clock() - self._started_s)

    def free_s(self) -> float:
        """Returns the seconds until a budget ends for one more trial beside those that run, each of which still takes
        what was expected of it; infinite without one.
        """
        return min((self.gpu_left_s() - self._promised_gpu_s()) / self.num_devices, self._wall_left_s())

    def keep(self, seconds: float) -> None:
        """Sets the seconds that the search reserves for confirmation runs."""
        self._kept_s = seconds

    def kept_s(self) -> float:
        """Returns the seconds reserved for confirmation runs; 0 after the search."""
        return self._kept_s

    def stop_at_s(self, leave_s: float, num_lanes: int = 1) -> float | None:
        """Returns when a trial must end, by the driver's monotonic clock, so that `leave_s` remain even where trials
        spend device seconds in each of `num_lanes` until then, and those that run what was expected of them; None
        without a budget.
        """
        left_s = self.free_s() - leave_s
        if math.isfinite(self.gpu_left_s()):
            left_s = min(left_s, (self.gpu_left_s() / self.num_devices - leave_s) / num_lanes)
        return self._clock() + left_s if math.isfinite(left_s) else None

    def _promised_gpu_s(self, trial_s: float = 0.0) -> float:
        """Returns the device seconds that the running trials still take, if each takes what was expected of it in all,
        and at least `trial_s`.
        """
        now_s = self._clock()
        return sum(
            devices * max(0.0, max(trial_s, expected_s) - (now_s - since_s))
            for devices, since_s, expected_s in self._running.values()
        )

    @property
    def whole_s(self) -> float:
        """Total seconds that the budget allows; infinite without one."""
        of_devices = math.inf if self.budget.gpu_s is None else self.budget.gpu_s / self.num_devices
        return min(self.budget.time_s or math.inf, of_devices)

    def over_reason(self, *, trial_s: float, reserve_s: float) -> str:
        """Returns why the search may start no further trial; "" if it may.

        Every trial, also a running one, takes at least `trial_s`, and `reserve_s` must remain for confirmation runs.
        """
        limit = self.budget.max_trials
        is_run = limit is not None and self._num_searched >= limit
        trials = f"the search ran its {plural(limit or 0, 'trial')} (--max-trials)" if is_run else ""
        # Both reasons are given if both hold: the last trial may have been cut short by the time.
        return ", and ".join(filter(None, (trials, self._time_over_reason(trial_s, reserve_s))))

    def _time_over_reason(self, trial_s: float, reserve_s: float) -> str:
        budget, left_s = self.budget, self.time_left_s()
        if math.isfinite(self.gpu_left_s()) and math.isfinite(trial_s):
            left_s = min(left_s, (self.gpu_left_s() - self._promised_gpu_s(trial_s)) / self.num_devices)
        if self.gpu_left_s() <= 0:
            return f"{round(budget.gpu_s or 0.0, 1):g} device seconds are spent (--gpu-s)"
        if left_s <= 0:
            return f"{round(budget.time_s or 0.0, 1):g} s are over {budget.time_words}"
        if left_s >= trial_s + reserve_s:
            return ""
        budget_words = f" {budget.time_words}" if budget.of_space else ""
        after = " beside the final runs" if left_s >= trial_s else ""
        return f"the {left_s:.0f} s that are left of the budget{budget_words} are too short for a trial{after}"
