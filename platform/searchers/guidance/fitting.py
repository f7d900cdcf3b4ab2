"""Predicts which points fit in memory: the cost model, corrected by measured peaks and out-of-memory errors."""

import math

import numpy as np
import numpy.typing as npt

from platform.cost_model.columns import Array
from platform.cost_model.gp_inputs import Index
from platform.cost_model.predict import normal_cdf
from platform.cost_model.regression import Learned, Prior, learn, teachers
from platform.searchers.guidance.points import PointArrays
from platform.searchers.problem import Observation
from trainers.records.measurement import Outcome

MEMORY = Prior(common=0.04, effects=0.25, smooth=0.03, noise=0.02)
"""Prior for the errors of predicted peaks."""
UNPREDICTED = Prior(common=1.0, effects=1.0, smooth=0.5, noise=0.3)
"""Prior for a point's distance from the memory limit without a prediction: 1 if it ran, -1 if it did not."""
LIKELY = 1.0
"""Distance assumed before any measurement, because most points of a space run."""
NOISE = 0.03
"""Log deviation of a peak that other measurements cannot predict, from rounding and fragmentation."""
MARGIN = 0.02
"""Assumed excess over the capacity of a point that ran out of memory, in log space."""
CRASH_NOISE = 0.3
"""Log deviation of that excess if a point crashed and memory is only the likeliest cause."""


class Fitting:
    """A study's knowledge of memory. If only times are predicted, every point counts as fitting: the extrapolation of a
    ladder's own measured memory decides.
    """

    def __init__(self, points: PointArrays) -> None:
        self._points = points
        self._allocated_gib: dict[int, float] = {}
        self._crowded: dict[int, float] = {}
        """Predicted memory over the limit, in log space, of points that ran out of memory or had no head-room."""
        self._crashed: set[int] = set()
        """Points in `_crowded` that crashed without a known cause."""
        self._timed: set[int] = set()
        self._ran_before: list[int] = []
        """Points that ran in an earlier study."""
        self._learned: Learned | None = None

    def learn(self, point: int, result: Observation, *, timed: bool) -> None:
        """Learns from the point's measurement; `timed` is whether its time counts."""
        self._learned = None
        peak = result.peak_allocated_gib
        if timed:
            self._timed.add(point)
        if peak is not None and math.isfinite(peak) and peak > 0:
            self._allocated_gib[point] = peak
        if result.outcome in (Outcome.OOM, Outcome.THRASH, Outcome.FAILED) and not result.ran_out_on_host:
            limited = self._points.log_pooled if result.outcome is Outcome.THRASH else self._points.log_needed
            self._crowded[point] = float(limited[point])
        if result.outcome is Outcome.FAILED:
            self._crashed.add(point)

    def ran_before(self, point: int) -> None:
        """Marks the point as fitting, because an earlier study on these devices ran it."""
        self._ran_before.append(point)

    def chances(self, index: Index) -> Array:
        """Returns the probability that each point runs with head-room."""
        if not self._points.predicted:
            return self._chances_by_outcomes(index)
        if not self._points.predicts_memory:
            return np.ones(len(index))
        mean, sigma = self._posterior().each(index)
        fits = normal_cdf(-(self._points.log_pooled[index] + mean) / np.hypot(sigma, NOISE))
        return np.where(np.isin(index, self._ran_before), 1.0, fits)

    def _chances_by_outcomes(self, index: Index) -> Array:
        """Returns the probability that each point runs, learned only from which points ran; 1 while none has failed.

        The method is regression on labels (Rasmussen and Williams 2006, section 6.5).
        """
        if not self._crowded:
            return np.ones(len(index))
        if self._learned is None:
            points = np.array(sorted({*self._timed, *self._crowded}), dtype=np.int64)
            ran = np.where(np.isin(points, list(self._crowded)), -1.0, 1.0)
            self._learned = learn(self._points, points, ran - LIKELY, UNPREDICTED)
        mean, sigma = self._learned.each(index)
        return normal_cdf((LIKELY + mean) / np.hypot(sigma, UNPREDICTED.noise))

    def too_large(self) -> npt.NDArray[np.bool_]:
        """Returns for every point whether it is likelier to run out of memory than to run."""
        if not self._points.predicts_memory:
            return np.zeros(len(self._points), dtype=bool)
        over = self._points.log_needed + self._posterior().roughly() > 0.0
        over[self._ran_before] = False
        return over

    def _posterior(self) -> Learned:
        if self._learned is None:
            self._learned = self._learn_all()
        return self._learned

    def _learn_all(self) -> Learned:
        """Fits the regression.

        A point that ran out of memory although predicted to fit, or ran although predicted not to, counts as an error
        of at least `MARGIN`. A point that ran without a measured peak only gives an upper bound, which counts if the
        prediction says that it does not fit. A second pass adds points that only other points' out-of-memory errors
        predict not to fit, so that one error does not decide for all similar points.
        """
        points = self._points
        residual = {
            point: math.log(peak) - float(points.log_allocated_gib[point])
            for point, peak in self._allocated_gib.items()
        }
        for point, predicted in self._crowded.items():
            residual[point] = max(residual.get(point, -math.inf), MARGIN - predicted)
            if predicted > MARGIN:
                del residual[point]
        bounds = [point for point in self._timed if point not in residual]
        residual |= {bound: -MARGIN - p for bound in bounds if (p := float(points.log_pooled[bound])) > -MARGIN}
        learned = self._of(residual)
        if bounds and self._crowded:
            unexplained = np.array([bound for bound in bounds if bound not in residual], dtype=np.int64)
            over = points.log_pooled[unexplained] + learned.roughly()[unexplained] > -MARGIN
            if over.any():
                residual |= {int(point): -MARGIN - float(points.log_pooled[point]) for point in unexplained[over]}
                learned = self._of(residual)
        return learned

    def _of(self, residual: dict[int, float]) -> Learned:
        points = self._points
        index = np.array(sorted(residual), dtype=np.int64)
        off = np.array([residual[point] for point in index])
        chosen = teachers(np.abs(points.log_pooled[index] + off))
        crashed = np.where(np.isin(index[chosen], list(self._crashed)), CRASH_NOISE, 0.0)
        return learn(points, index[chosen], off[chosen], MEMORY, noise=crashed)
