"""What measurements teach of points not yet measured: a Gaussian process over the prediction's residuals.

A residual is log(measured / predicted). It is taken for the sum of an error common to all points, effects that are
linear in features (values of an axis, doublings, shares of a step's parts), a smooth rest over the points' places, and
noise (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1 and section 2.7). All of
its deviations are given, so a Cholesky factor is all there is: importing scikit-learn for it took 2 s of every search.
"""

import dataclasses

import numpy as np

from platform.cost_model.columns import Array
from platform.searchers.guidance.points import Index, Points


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sigmas:
    """Prior deviations of a residual, in log space."""

    common: float
    effects: float
    """Times that of each effect, which stands in the points."""
    smooth: float
    noise: float
    """Of what differs from point to point without a pattern, the measurement's own error included."""


TIME = Sigmas(common=0.25, effects=1.0, smooth=0.1, noise=0.03)
UNPREDICTED = Sigmas(common=10.0, effects=1.0, smooth=0.2, noise=0.03)
"""Of a log step time that nothing predicts."""
MEMORY = Sigmas(common=0.04, effects=0.25, smooth=0.03, noise=0.02)
LENGTH = 1.0
"""Doublings or switches over which the smooth rest changes."""
SCALES = (0.5, 1.0, 2.0)
"""How much better or worse than usual the prediction may be in one study; the likeliest is taken."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Process:
    """The posterior after rows of [features | places]; the prior where there are none."""

    cut: int
    """Number of features."""
    sigmas: Sigmas
    rows: Array
    whitener: Array
    """Inverse of the lower Cholesky factor of the rows' covariance with noise."""
    weights: Array
    """That covariance's inverse times the residuals."""

    def mean_and_covariance(self, at: Array) -> tuple[Array, Array]:
        """Of the rows of `at`, and between them."""
        beside = _kernel(at, self.rows, self.cut, self.sigmas)
        known = self.whitener @ beside.T
        return beside @ self.weights, _kernel(at, at, self.cut, self.sigmas) - known.T @ known

    def mean_and_deviation(self, at: Array) -> tuple[Array, Array]:
        """Of each row of `at`."""
        beside = _kernel(at, self.rows, self.cut, self.sigmas)
        own = self.sigmas.common**2 + self.sigmas.smooth**2
        prior = own + self.sigmas.effects**2 * (at[:, : self.cut] ** 2).sum(axis=1)
        known = ((self.whitener @ beside.T) ** 2).sum(axis=0)
        return beside @ self.weights, np.sqrt(np.maximum(prior - known, 0.0))


def _kernel(rows: Array, others: Array, cut: int, sigmas: Sigmas) -> Array:
    """common^2 + effects^2 x linear + smooth^2 x RBF over [features | places]."""
    a, b = rows[:, cut:] / LENGTH, others[:, cut:] / LENGTH
    apart = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    linear = rows[:, :cut] @ others[:, :cut].T
    return sigmas.common**2 + sigmas.effects**2 * linear + sigmas.smooth**2 * np.exp(-0.5 * np.maximum(apart, 0.0))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """The posterior over the residuals of all points."""

    points: Points
    process: _Process
    slope: Array
    """Of the effects: what the posterior's linear part adds to each."""
    common: float
    """What it adds to all points."""

    def roughly(self) -> Array:
        """The posterior's mean at every point, but for the smooth rest: cheap for the whole space."""
        return self.common + np.asarray(self.points.effects @ self.slope.astype(np.float32), dtype=np.float64)

    def at(self, index: Index) -> tuple[Array, Array]:
        """Mean and covariance [points, points] at a few points."""
        return self.process.mean_and_covariance(_rows(self.points, index))

    def each(self, index: Index) -> tuple[Array, Array]:
        """Mean and deviation at each of many points."""
        return self.process.mean_and_deviation(_rows(self.points, index))


def _rows(points: Points, index: Index) -> Array:
    return np.concatenate([points.effects[index], points.place[index]], axis=1).astype(np.float64)


def learn(
    points: Points, index: Index, residuals: Array, sigmas: Sigmas, scales: tuple[float, ...] = SCALES
) -> Learned:
    """The posterior after the points of `index` had `residuals`: at the likeliest of `scales`."""
    rows, cut = _rows(points, index), points.effects.shape[1]
    kernel, noise = _kernel(rows, rows, cut, sigmas), sigmas.noise**2 * np.eye(len(rows))
    found: list[tuple[float, float, Array]] = []
    for scale in scales if len(index) > 1 else (1.0,):
        factor: Array = np.asarray(np.linalg.cholesky(scale**2 * kernel + noise), dtype=np.float64)
        white = np.linalg.solve(factor, residuals)
        likelihood = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())  # and a constant
        found.append((likelihood, scale, factor))
    _, best, factor = max(found, key=lambda each: each[0])
    whitener: Array = np.asarray(np.linalg.inv(factor), dtype=np.float64)
    sigmas = dataclasses.replace(
        sigmas, common=sigmas.common * best, effects=sigmas.effects * best, smooth=sigmas.smooth * best
    )
    weights = whitener.T @ (whitener @ residuals)
    return Learned(
        points=points,
        process=_Process(cut=cut, sigmas=sigmas, rows=rows, whitener=whitener, weights=weights),
        slope=sigmas.effects**2 * (rows[:, :cut].T @ weights),
        common=sigmas.common**2 * float(weights.sum()),
    )
