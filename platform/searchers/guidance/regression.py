"""What measurements teach of points not yet measured: scikit-learn's Gaussian process over the prediction's residuals.

A residual is log(measured / predicted). It is taken for the sum of an error common to all points, effects that are
linear in features (values of an axis, doublings, shares of a step's parts), a smooth rest over the points' places, and
noise (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2, 2.7 and 5.4.1).
"""

import dataclasses
from typing import Any, cast

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel

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
    host: float = 0.0
    """The same of a step that is all the host's: times its share of a step."""


TIME = Sigmas(common=0.1, effects=1.0, smooth=0.06, noise=0.035, host=0.2)
"""Near the likeliest for the recorded tables, as are the effects' and `LENGTH`: `benchmarks/prior_likelihood.py`."""
UNPREDICTED = Sigmas(common=10.0, effects=1.0, smooth=0.2, noise=0.03)
"""Of a log step time that nothing predicts."""
MEMORY = Sigmas(common=0.04, effects=0.25, smooth=0.03, noise=0.02)
TEACHERS = 384
"""Most measurements that a regression learns from: its time grows with their cube, a study may have ten thousand."""
LENGTH = 1.5
"""Doublings or switches over which the smooth rest changes."""
SCALES = (0.5, 1.0, 2.0)
"""How much better or worse than usual the prediction may be in one study; the likeliest is taken."""

_REGRESSOR: Any = GaussianProcessRegressor  # its stubs know no `optimizer=None`, which its documentation does


class _Shared(Kernel):
    """common^2 + effects^2 x linear + smooth^2 x RBF over [features | places]."""

    def __init__(self, num_effects: int, common: float, effects: float, smooth: float) -> None:
        self.num_effects = num_effects
        self.common = common
        self.effects = effects
        self.smooth = smooth

    def __call__(self, rows: Array, others: Array | None = None, eval_gradient: bool = False) -> Any:
        others = rows if others is None else others
        cut = self.num_effects
        a, b = rows[:, cut:] / LENGTH, others[:, cut:] / LENGTH
        apart = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
        linear = rows[:, :cut] @ others[:, :cut].T
        kernel = self.common**2 + self.effects**2 * linear + self.smooth**2 * np.exp(-0.5 * np.maximum(apart, 0.0))
        return (kernel, np.empty((len(rows), len(rows), 0))) if eval_gradient else kernel

    # scikit-learn's stubs say that these two return None.
    def diag(self, rows: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        linear = (rows[:, : self.num_effects] ** 2).sum(axis=1)
        return self.common**2 + self.smooth**2 + self.effects**2 * linear

    def is_stationary(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """The posterior over the residuals of all points."""

    points: Points
    process: Any
    """The fitted regressor."""
    slope: Array | None
    """Of the effects: what the posterior's linear part adds to each; None before the first measurement."""
    common: float
    """What it adds to all points."""

    def roughly(self) -> Array:
        """The posterior's mean at every point, but for the smooth rest: cheap for the whole space."""
        if self.slope is None:
            return np.zeros(len(self.points))
        return self.common + np.asarray(self.points.effects @ self.slope.astype(np.float32), dtype=np.float64)

    def at(self, index: Index) -> tuple[Array, Array]:
        """Mean and covariance [points, points] at a few points."""
        return cast(tuple[Array, Array], self.process.predict(_rows(self.points, index), return_cov=True))

    def each(self, index: Index) -> tuple[Array, Array]:
        """Mean and deviation at each of many points."""
        return cast(tuple[Array, Array], self.process.predict(_rows(self.points, index), return_std=True))


def _rows(points: Points, index: Index) -> Array:
    return np.concatenate([points.effects[index], points.place[index]], axis=1).astype(np.float64)


def learn(
    points: Points,
    index: Index,
    residuals: Array,
    sigmas: Sigmas,
    waited: Array | None = None,
    noise: Array | float = 0.0,
) -> Learned:
    """The posterior after the points of `index` had `residuals`, at the likeliest of `SCALES`.

    `waited` is the share of each one's step in which its device was seen to wait, `noise` a further deviation of each.
    """
    host_share = points.host_share[index] if waited is None else np.maximum(points.host_share[index], waited)
    variance = np.square(noise) + sigmas.noise**2 + (sigmas.host * host_share) ** 2
    best: Any = None
    best_kernel: _Shared | None = None
    for scale in SCALES if len(index) > 1 else (1.0,):
        kernel = _Shared(
            num_effects=points.effects.shape[1],
            common=sigmas.common * scale,
            effects=sigmas.effects * scale,
            smooth=sigmas.smooth * scale,
        )
        process = _REGRESSOR(kernel, alpha=variance, optimizer=None, copy_X_train=False)
        if not len(index):
            return Learned(points=points, process=process, slope=None, common=0.0)
        process.fit(_rows(points, index), residuals)
        if best is None or process.log_marginal_likelihood_value_ > best.log_marginal_likelihood_value_:
            best, best_kernel = process, kernel
    assert best_kernel is not None
    slope = best_kernel.effects**2 * (points.effects[index].T.astype(np.float64) @ best.alpha_)
    return Learned(points=points, process=best, slope=slope, common=best_kernel.common**2 * float(best.alpha_.sum()))


def teachers(away: Array) -> Index:
    """Places of at most `TEACHERS` of the measurements: half are those least `away` from what is to be decided, the
    best time or the edge of memory; the others lie evenly among the rest.
    """
    if len(away) <= TEACHERS:
        return np.arange(len(away))
    order = np.argsort(away, kind="stable")
    near, rest = order[: TEACHERS // 2], np.sort(order[TEACHERS // 2 :])
    spread = rest[np.linspace(0, len(rest) - 1, TEACHERS - len(near)).astype(np.int64)]
    return np.sort(np.concatenate([near, spread]))
