"""Correction of predictions by measurements, in log space: a Gaussian process over the residuals.

The residual log(measured / predicted) of a point is taken for the sum of an error common to its engine and hardware,
errors of the parts of a step weighted with their shares, a smooth error over the layout's degrees and micro-batch, and
noise (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2 and 2.7). Few measurements
move what they speak of and leave the rest at the zero-shot prediction; the posterior's variance is the new interval.

A study measures what is predicted fastest, so what it measures is more often a point that was predicted too fast: a
part of its residual, in proportion to its zero-shot deviation, is the point's and not the others' (the winner's curse).
A measurement far off all that the others say is a stall of the machine, or a layout of its own: its noise is that of a
Student t distribution (`TAIL` degrees of freedom; Lange, Little, Taylor, JASA 1989, by reweighting).
"""

import dataclasses

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns
from platform.cost_model.predict import SHARE_SIGMA, Z_80, Prediction

COMMON_SIGMA = constants.number("calibration", "COMMON_SIGMA")
SMOOTH_SIGMA = constants.number("calibration", "SMOOTH_SIGMA")
SMOOTH_LENGTH = constants.number("calibration", "SMOOTH_LENGTH")
NOISE_SIGMA = constants.number("calibration", "NOISE_SIGMA")
OWN_SHARE = constants.number("calibration", "OWN_SHARE")
PART_SHARE = constants.number("calibration", "PART_SHARE")
TAIL = constants.number("calibration", "TAIL")
ROUNDS = 5
MOST_SURPRISE = 4.0
"""Deviations beyond which a surprise says no more of the others' scatter."""
OTHER_GROUP = constants.number("calibration", "OTHER_GROUP")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What measurements taught. `apply` corrects any prediction of the same study."""

    columns: Columns
    """The measured points."""
    prediction: Prediction
    residuals: Array
    """log(measured / predicted) of each."""

    @property
    def error_before(self) -> float:
        """Median absolute error of the measured points' zero-shot predictions."""
        return float(np.median(np.abs(np.expm1(-self.residuals))))

    @property
    def error_after(self) -> float:
        """Median absolute error when each measured point is predicted from the others (leave one out).

        Needs two points; with fewer it is the error before. Formula: Rasmussen and Williams, section 5.4.2.
        """
        if len(self.residuals) < 2:
            return self.error_before
        inverse = np.linalg.inv(self._weighed())
        left_out = inverse @ self.residuals / np.diag(inverse)
        return float(np.median(np.abs(np.expm1(-left_out))))

    def apply(self, columns: Columns, prediction: Prediction) -> Prediction:
        """`prediction` of `columns`, corrected, with its intervals."""
        if not len(self.residuals):
            return prediction
        inverse: Array = np.asarray(np.linalg.inv(self._weighed()), dtype=np.float64)
        cross = _kernel(columns, prediction, self.columns, self.prediction)
        mean = cross @ (inverse @ self.residuals)
        prior = _prior_variance(columns, prediction)
        variance = np.maximum(prior - np.einsum("ij,jk,ik->i", cross, inverse, cross), 0.0)
        # What the measured points scatter by, over what was expected, holds of the others: wider as well as narrower.
        sigma = np.sqrt(variance + _noise(columns, prediction) * self._scatter(inverse))
        scale = np.exp(mean)
        parts = {
            field.name: getattr(prediction.step, field.name) * scale for field in dataclasses.fields(prediction.step)
        }
        step = dataclasses.replace(prediction.step, **parts)
        width = np.exp(Z_80 * sigma)
        return dataclasses.replace(
            prediction, step=step, sigma=sigma, low_s=step.total_s / width, high_s=step.total_s * width
        )

    def _weighed(self) -> Array:
        """Covariance of the measured residuals, noise included: each one's as a Student t has it."""
        kernel = _kernel(self.columns, self.prediction, self.columns, self.prediction)
        noise = _noise(self.columns, self.prediction)
        weights = np.ones(len(self.residuals))
        for _ in range(ROUNDS):
            inverse = np.linalg.inv(kernel + np.diag(noise / weights))
            left_out, variance = inverse @ self.residuals / np.diag(inverse), 1 / np.diag(inverse)
            # Of the variance without the point's own weight.
            variance = variance - noise / weights + noise
            weights = np.minimum((TAIL + 1) / (TAIL + left_out**2 / variance), 1.0)
        return kernel + np.diag(noise / weights)

    def _scatter(self, inverse: Array) -> float:
        """Mean square of the left-out residuals over what was expected, beside `TAIL` measurements as expected."""
        squares = np.minimum((inverse @ self.residuals) ** 2 / np.diag(inverse), MOST_SURPRISE**2)
        return float((TAIL + squares.sum()) / (TAIL + len(squares)))


def calibrate(columns: Columns, prediction: Prediction, measured_s: Array) -> Calibration:
    """Learns from `measured_s`, the step times of all rows of `columns` in seconds."""
    return Calibration(
        columns=columns,
        prediction=prediction,
        residuals=np.log(measured_s / np.maximum(prediction.step.total_s, 1e-12)),
    )


def _coordinates(c: Columns) -> Array:
    """[rows, axes]: what the smooth error varies over, a doubling or a switch counting one."""
    axes = (
        np.log2(c.micro_batch * c.seq_len),
        np.log2(c.tp),
        np.log2(c.pp),
        np.log2(c.dp),
        np.log2(c.hidden),
        c.zero_stage,
        c.selective_checkpointing + 2 * c.full_checkpointing,
        2 * c.flash,
        2 * c.fused,
        np.log2(c.heads),
    )
    return np.stack([np.broadcast_to(axis, c.shape) for axis in axes], axis=-1)


def _shares(prediction: Prediction) -> Array:
    step = prediction.step
    return np.stack(
        [PART_SHARE * sigma * getattr(step, part) / step.total_s for part, sigma in SHARE_SIGMA.items()], axis=-1
    )


def _groups(c: Columns) -> Array:
    """A number for each engine and device."""
    return np.broadcast_to(c.engine * 1e6 + np.round(c.peak_flops / 1e12) + np.round(c.capacity_gib) * 1e-3, c.shape)


def _kernel(a: Columns, prediction_a: Prediction, b: Columns, prediction_b: Prediction) -> Array:
    """Covariance [rows of a, rows of b] of the residuals, without noise."""
    same = _groups(a)[:, None] == _groups(b)[None, :]
    common = COMMON_SIGMA**2 * np.where(same, 1.0, OTHER_GROUP)
    parts = _shares(prediction_a) @ _shares(prediction_b).T
    distance = ((_coordinates(a)[:, None, :] - _coordinates(b)[None, :, :]) ** 2).sum(axis=-1)
    return common + parts + SMOOTH_SIGMA**2 * np.exp(-0.5 * distance / SMOOTH_LENGTH**2)


def _noise(columns: Columns, prediction: Prediction) -> Array:
    """Variance of a point's own residual: of a measurement, and of what no other point tells."""
    return np.broadcast_to(NOISE_SIGMA**2 + (OWN_SHARE * prediction.sigma) ** 2, columns.shape)


def _prior_variance(columns: Columns, prediction: Prediction) -> Array:
    return COMMON_SIGMA**2 + (_shares(prediction) ** 2).sum(axis=-1) + SMOOTH_SIGMA**2 + np.zeros(columns.shape)
