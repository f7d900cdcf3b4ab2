"""Corrects predicted step times by measured ones, and tracks the fastest step of each recipe."""

import contextlib
import dataclasses
import math
from collections.abc import Generator
from typing import Any

import numpy as np

from platform.cost_model.columns import Array
from platform.cost_model.gp_inputs import Index
from platform.cost_model.learned_rates import RateFactors, TimedRows, learned_factors
from platform.cost_model.regression import TIME, Learned, Prior, learn, teachers
from platform.searchers.guidance.points import PointArrays, make_points
from platform.searchers.problem import Observation, Problem
from trainers.records.measurement import TIMED, Outcome

UNPREDICTED = Prior(common=10.0, effects=1.0, smooth=0.2, noise=0.03)
"""Prior of a log step time without a prediction."""
MORE = 1.1
"""Growth factor of the number of measurements after which rates are learned again."""
UNKNOWN_LEAD = math.log(2.0)
"""Log lead of the best prediction over a recipe's incumbent, assumed before the recipe has one."""


class StepTimes:
    """A study's knowledge of step times, in log seconds. `Fitting` has the knowledge of memory."""

    def __init__(self, problem: Problem[Any], points: PointArrays) -> None:
        self._problem = problem
        self.points = points
        """The points, predicted with the rates implied by the measurements."""
        self.factors = RateFactors()
        """The learned rates over the assumed ones."""
        self._num_learned = 0
        """Number of measurements behind `factors`."""
        self._log_step_s: dict[int, float] = {}
        """Measured log step time, by point."""
        self._micro_s: dict[int, float] = {}
        """Measured seconds of a further micro-step, by point; NaN if unknown."""
        self._idle_share: dict[int, float] = {}
        """Share of the step in which the device waited, by point."""
        self._believed: dict[int, float] = {}
        """Believed log step time of points whose trials run."""
        self._surprise: float | None = None
        """Surprise of the measured points alone, while others are believed; None otherwise."""
        self.incumbents: dict[int, float] = {}
        """Fastest measured log step time, by group."""

    def learn(self, point: int, result: Observation, tokens_per_step: int) -> bool:
        """Adds the point's measurement to the regression; returns whether its time counts."""
        log_step_s = _log_step_s(result, tokens_per_step)
        if log_step_s is None:
            return False
        self._log_step_s[point] = log_step_s
        self._micro_s[point] = math.nan if result.micro_step_s is None else result.micro_step_s
        busy = result.utilization_pct
        self._idle_share[point] = 0.0 if busy is None or not math.isfinite(busy) else 1 - busy / 100
        return True

    def lead(self, group: int, result: Observation, tokens_per_step: int) -> None:
        """Makes the result its group's incumbent if it is the fastest."""
        log_step_s = _log_step_s(result, tokens_per_step)
        if log_step_s is not None and result.outcome is Outcome.OK:
            self.incumbents[group] = min(self.incumbents.get(group, math.inf), log_step_s)

    def groups(self) -> set[int]:
        """Returns the groups with a measured time."""
        return {int(self.points.group[point]) for point in self._log_step_s}

    def reference(self, group: int, speed: Array) -> float:
        """Returns the log speed of the group's incumbent; without one, the largest of `speed` less `UNKNOWN_LEAD`."""
        incumbent = self.incumbents.get(group)
        return float(np.max(speed)) - UNKNOWN_LEAD if incumbent is None else -incumbent

    @contextlib.contextmanager
    def believing(self, index: Index, fits: Array) -> Generator[None]:
        """Counts points without a result as measured at the posterior's mean inside this context.

        `fits` is the probability that each fits. A point likelier to fit than not may also lead its group, if that has
        an incumbent.
        """
        if not len(index):
            yield
            return
        before, posterior = self.incumbents, self.posterior()
        self._surprise = posterior.surprise()
        mean, _ = posterior.each(index)
        believed = self.points.log_step_s[index] + mean
        self._believed = dict(zip(index.tolist(), believed.tolist(), strict=True))
        self.incumbents = dict(before)
        for group, log_step_s in zip(self.points.group[index][fits > 0.5], believed[fits > 0.5], strict=True):
            if group in before:
                self.incumbents[int(group)] = min(self.incumbents[int(group)], float(log_step_s))
        try:
            yield
        finally:
            self._believed, self._surprise, self.incumbents = {}, None, before

    def surprise(self, posterior: Learned) -> float:
        """Returns the factor by which the posterior's variance is enlarged; see `Learned.surprise`."""
        return posterior.surprise() if self._surprise is None else self._surprise

    def posterior(self) -> Learned:
        """Returns the regression over the residuals of the step times.

        Of many, it uses a part that favours those near the fastest.
        """
        self._correct()
        points = self.points
        times = {**self._believed, **self._log_step_s}
        index = np.array(sorted(times), dtype=np.int64)
        measured = np.array([times[point] for point in index])
        fastest = np.full(int(points.group.max()) + 1, np.inf)
        np.minimum.at(fastest, points.group[index], measured)
        chosen = teachers(measured - fastest[points.group[index]])
        index, measured = index[chosen], measured[chosen]
        idle_share = np.array([self._idle_share.get(int(point), 0.0) for point in index])
        prior = TIME if points.predicted else UNPREDICTED
        return learn(points, index, measured - points.log_step_s[index], prior, idle_share)

    def _correct(self) -> None:
        """Predicts all points again if the measured ones imply other rates than before."""
        columns, number = self._problem.columns, len(self._log_step_s)
        if columns is None or not number or number < MORE * self._num_learned:
            return
        self._num_learned = number
        index = np.array(list(self._log_step_s), dtype=np.int64)
        measured = columns.take(index)
        # Competing points compare by the seconds of equal numbers of tokens, which may differ from one step's.
        compared = np.array([self._problem.rows[owner].tokens_per_step for owner in self.points.owner[index]])
        step_s = np.exp(list(self._log_step_s.values())) * measured.tokens_per_step / compared
        micro_s = np.array(list(self._micro_s.values()))
        factors = learned_factors(TimedRows(columns=measured, step_s=step_s, micro_s=micro_s))
        if not factors.is_near(self.factors):
            self.factors = factors
            self.points = make_points(dataclasses.replace(self._problem, columns=factors.on(columns)))


def _log_step_s(result: Observation, tokens_per_step: int) -> float | None:
    """Returns the logarithm of the measured step time; None if no time counts."""
    speed = result.tokens_per_s
    if result.outcome not in TIMED or speed is None or not math.isfinite(speed) or speed <= 0:
        return None
    return math.log(tokens_per_step / speed)
