"""Correction of predictions by measurements of some of their points: the regression's posterior (`regression`)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from platform.cost_model.columns import Array, Columns
from platform.cost_model.gp_inputs import GPInputs, Index, gp_inputs_of
from platform.cost_model.linear_algebra import one_thread
from platform.cost_model.predict import Prediction, spread
from platform.cost_model.regression import MAX_TRAINING_POINTS, Learned, learn


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A prediction of all points, corrected by measurements of some."""

    prediction: Prediction
    """The prediction before any measurement."""
    learned: Learned

    @property
    def error_before(self) -> float:
        """Median absolute error of the measured points' zero-shot predictions."""
        return _error(self.learned.residuals)

    @property
    def error_after(self) -> float:
        """Median absolute error when each measured point is predicted from the others; `error_before` with
        one point.
        """
        return _error(self.learned.leave_one_out()) if len(self.learned.residuals) > 1 else self.error_before

    @property
    def corrected(self) -> Prediction:
        """The prediction of all points, corrected by the posterior, with the posterior's intervals."""
        if not len(self.learned.index):
            return self.prediction
        every = np.arange(len(self.learned.places))
        with one_thread():
            mean, deviation = self.learned.each(every)
        earned = self.learned.earned()
        after = deviation**2 + self.learned.noise_variance(every)
        before = np.maximum(self.prediction.sigma**2, after)
        sigma = np.sqrt(earned * after + (1 - earned) * (before + earned * mean**2))
        mean = earned * mean
        scale, step = np.exp(mean), self.prediction.step
        parts = {field.name: getattr(step, field.name) * scale for field in dataclasses.fields(step)}
        step = dataclasses.replace(step, **parts)
        stall, stalled_s = self.learned.stall_chance(every), self.prediction.stalled_s
        return dataclasses.replace(self.prediction, step=step, **spread(step, sigma, stall, stalled_s))


def _error(residuals: Array) -> float:
    return float(np.median(np.abs(np.expm1(-residuals))))


def calibrate(places: GPInputs, prediction: Prediction, index: Index, measured_s: Array) -> Calibration:
    """Learns from `measured_s`, the step times in seconds of the points in `index`; where there are more than
    `MAX_TRAINING_POINTS`, from that many, spread evenly.
    """
    residuals = np.log(measured_s / np.maximum(prediction.step.total_s[index], 1e-12))
    few = np.linspace(0, len(index) - 1, min(len(index), MAX_TRAINING_POINTS)).astype(np.int64)
    with one_thread():
        return Calibration(prediction=prediction, learned=learn(places, index[few], residuals[few]))


def gp_inputs_of_rows(
    axes: Sequence[Mapping[str, Any]], columns: Columns, prediction: Prediction, *, num_measured: int | None = None
) -> GPInputs:
    """Returns the places of rows, each of which has its own `axes`; distances count from the first `num_measured`, if
    given.
    """
    micro_batch = np.broadcast_to(columns.micro_batch, (len(axes),)).astype(np.int64)
    return gp_inputs_of(axes, np.arange(len(axes)), micro_batch, columns, prediction, slice(num_measured))
