"""Device seconds of each recipe's planned run, of which a trial's saving is a share."""

import math
from typing import Any

import numpy as np

from platform.searchers.guidance.points import PointArrays
from platform.searchers.problem import Problem


class PlannedRun:
    """The planned run of each group of competing points."""

    def __init__(self, problem: Problem[Any], points: PointArrays) -> None:
        self._tokens, self._device = problem.tokens, problem.costs.device
        self._num_devices = problem.costs.num_devices
        groups, members = np.unique(points.group, return_index=True)
        self._tokens_per_step = {
            int(group): problem.rows[int(points.owner[int(member)])].tokens_per_step
            for group, member in zip(groups, members, strict=True)
        }

    def gpu_s(self, group: int, log_step_s: float) -> float:
        """Returns the device seconds of the group's run at `log_step_s`; 0 if no run is planned."""
        steps = (self._tokens or 0.0) / self._tokens_per_step[group]
        return steps * math.exp(log_step_s) * self._num_devices

    def paying_rate(self, group: int, speed: float) -> float:
        """Returns the share of the group's run that a device second must save to pay, at the log speed `speed`."""
        gpu_s = self.gpu_s(group, -speed)
        return 1 / gpu_s if gpu_s else 0.0

    def refusal(self, group: int, log_step_s: float, saving: float, cost_gpu_s: float) -> str:
        """Returns why a trial costs more than its `saving` (a share of the run); "" if it pays."""
        gpu_s = self.gpu_s(group, log_step_s)
        if not saving * gpu_s < cost_gpu_s:  # an infinite run pays for every trial, but gives NaN for a saving of 0
            return ""
        saved, planned, cost = (_short(seconds / 86400) for seconds in (saving * gpu_s, gpu_s, cost_gpu_s))
        return (
            f"stopped: {_short(100 * saving)} % more would save {saved} {self._device}-days"
            f" of {planned}; the next trial costs {cost}"
        )


def _short(value: float) -> str:
    return f"{round(value, 6):.2g}" if value < 100 else f"{value:.0f}"
