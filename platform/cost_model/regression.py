"""Inference from measured to unmeasured points: a Gaussian process over the prediction's residuals.

A residual is log(measured / predicted). It is modelled as the sum of an error common to all points, effects that are
linear in features (values of an axis, doublings, shares of a step's parts), a smooth function of the points' places,
and noise (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2, 2.7 and 5.4). One
prior serves the guided search, `validate --calibrate`, a study's forecasts and projections.

A search that measures the points predicted fastest selects points that were predicted too fast (the winner's curse). So
a part of each residual, in proportion to the point's zero-shot deviation, belongs to that point alone. A measurement
far slower than the others imply is a stall of the machine: residuals are a mixture of usual ones and of stalls, whose
deviation is large (Box and Tiao, "A Bayesian approach to some outlier problems", Biometrika 1968).
"""

import dataclasses
import math

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Mask
from platform.cost_model.gp_inputs import DOUBLING_SIGMA, GPInputs, Index
from platform.cost_model.stalls import STALL_SIGMA


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """Deviations of a residual, in log space."""

    common: float
    effects: float
    """Factor of each effect's own deviation, which `GPInputs` holds."""
    smooth: float
    noise: float
    """Deviation between points without a pattern, with the measurement's own error."""
    host: float = 0.0
    """Deviation of a step that is host time only; scaled by the host's share of the step."""
    point: float = 0.0
    """Deviation as a share of the point's predicted deviation."""
    stall: float = 0.0
    """Least chance that a measurement is a stall."""


NOISE_SIGMA = constants.number("regression", "NOISE_SIGMA")
TIME = Prior(
    common=constants.number("regression", "COMMON_SIGMA"),
    effects=1.0,
    smooth=constants.number("regression", "SMOOTH_SIGMA"),
    noise=NOISE_SIGMA,
    host=constants.number("regression", "HOST_SIGMA"),
    point=constants.number("regression", "POINT_SHARE"),
    stall=constants.number("regression", "STALL_CHANCE"),
)
"""Prior for step times that the cost model predicts."""
LENGTH = constants.number("regression", "LENGTH")
STALL_EVIDENCE = constants.number("regression", "STALL_EVIDENCE")
SCALES = (0.5, 1.0, 2.0)
"""Factors of the prior's deviations for one study, whose predictions may be better or worse than usual; `learn` chooses
the likeliest.
"""
MOST_SURPRISE = 4.0
"""Standardized residual, in deviations, beyond which a point adds no more to the estimated scatter."""
SCATTER_WEIGHT = 4.0
"""Number of measurements as which the expected scatter counts, beside the actual ones."""
MOST_STALLS = 0.75
"""Chance of a stall on a machine that stalls often; upper limit of the chance that measurements can imply."""
MOST_STALLED = 2 / 3
"""Largest share of the measurements that can count as stalls: where more are slow, the prediction is wrong and not the
machine, and the others would be predicted as if nothing had been measured. Of three, two may be.
"""
MAX_TRAINING_POINTS = 384
"""Most measurements that a regression uses: its time grows with their cube, and a study may have ten thousand."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """The posterior over the residuals of all places."""

    places: GPInputs
    prior: Prior
    index: Index
    """Indices of the measured places."""
    residuals: Array
    inverse: Array
    """Inverse of the measured residuals' covariance, noise included."""
    stalled: Mask
    """The measured points that count as stalls."""
    likelihood: float = 0.0
    """Logarithm of the marginal likelihood of the residuals."""

    @property
    def pull(self) -> Array:
        """Weight of each measured residual in the posterior's mean, by its covariance with a point."""
        return self.inverse @ self.residuals

    def roughly(self) -> Array:
        """Returns the posterior's mean at every point without its smooth part, which is cheap for a whole space."""
        if not len(self.index):
            return np.zeros(len(self.places))
        pull = self.pull
        slope = self.prior.effects**2 * (self.places.effects[self.index].T.astype(np.float64) @ pull)
        linear = np.asarray(self.places.effects @ slope.astype(np.float32), dtype=np.float64)
        by_device = 1 - self.places.host_share
        return self.prior.common**2 * float(by_device[self.index] @ pull) * by_device + linear

    def at(self, index: Index) -> tuple[Array, Array]:
        """Returns the mean and covariance [points, points] at a few points, without noise."""
        cross = _kernel(self.places, index, self.index, self.prior)
        among_points = _kernel(self.places, index, index, self.prior)
        return cross @ self.pull, among_points - cross @ self.inverse @ cross.T

    def each(self, index: Index) -> tuple[Array, Array]:
        """Returns the mean and deviation at each of many points, without noise."""
        cross = _kernel(self.places, index, self.index, self.prior)
        variance = _variance(self.places, index, self.prior) - ((cross @ self.inverse) * cross).sum(axis=1)
        return cross @ self.pull, np.sqrt(np.maximum(variance, 0.0))

    def noise_variance(self, index: Index) -> Array:
        """Returns the part of each point's variance that no other point explains. The ratio of the measured points'
        scatter to its expectation scales it, up or down.
        """
        squares = np.minimum(self.leave_one_out() ** 2 * np.diag(self.inverse), MOST_SURPRISE**2)
        scatter = (SCATTER_WEIGHT + squares.sum()) / (SCATTER_WEIGHT + len(squares))
        return _noise(self.places, index, self.prior) * scatter

    def surprise(self) -> float:
        """Returns the factor, at least 1, by which the residuals enlarge the Gaussian process's posterior variance.

        Residuals far beyond the prior show that the prediction is worse here than usual: the variance of a Student-t
        process grows with them (Shah, Wilson and Ghahramani, "Student-t Processes as Alternatives to Gaussian
        Processes", 2014, section 4). Small residuals do not reduce the variance, since the best predicted points are
        measured first.
        """
        squares = float(self.residuals @ self.pull)
        return max((SCATTER_WEIGHT + squares) / (SCATTER_WEIGHT + len(self.index)), 1.0)

    def stall_chance(self, index: Index) -> Array:
        """Returns the chance that each point's step stalls, given how many of the measured points stalled on this
        machine.
        """
        if not self.stalled.any():
            return self.places.stall[index]
        before = _stall_chance(self.places, self.index, self.prior)
        findings = _StallFindings(self.stalled.sum(), before.sum(), _stall_evidence(before, self.stalled).sum())
        return findings.chance(_stall_chance(self.places, index, self.prior), self.prior.stall)

    def leave_one_out(self) -> Array:
        """Returns each measured point's residual minus its prediction from the other points (section 5.4.2)."""
        return self.pull / np.diag(self.inverse) if len(self.index) else np.zeros(0)

    def earned(self) -> float:
        """Returns the weight of the posterior's mean beside the predictions as they were: 1 where the measured
        residuals are as likely or likelier from each other as from no measurement, else the ratio of both likelihoods,
        by the posterior's deviation (leave-one-out, section 5.4.2). So measurements that contradict each other change
        less; 1 with a single one, which nothing can contradict.
        """
        usual = ~self.stalled
        if usual.sum() < 2:
            return 1.0
        squares = (self.residuals**2 - self.leave_one_out() ** 2) * np.diag(self.inverse)
        return float(np.exp(min(0.5 * float(squares[usual].sum()), 0.0)))


def learn(
    places: GPInputs,
    index: Index,
    residuals: Array,
    prior: Prior = TIME,
    waited: Array | None = None,
    noise: Array | float = 0.0,
) -> Learned:
    """Returns the posterior given the `residuals` of the points in `index`, with the likeliest of `SCALES`.

    `waited` is the measured share of each point's step in which its device waited, `noise` a further deviation of each
    residual.
    """
    nothing = Learned(
        places=places,
        prior=prior,
        index=index,
        residuals=residuals,
        inverse=np.zeros((0, 0)),
        stalled=np.zeros(0, dtype=bool),
        likelihood=-math.inf,
    )
    if not len(index):
        return nothing
    places = _contrasted(places, index)
    nothing = dataclasses.replace(nothing, places=places)
    variance = _noise(places, index, prior, waited) + np.square(noise)
    unscaled = _kernel(places, index, index, prior)
    stall = _stall_chance(places, index, prior)
    best = nothing
    for scale in SCALES if len(index) > 1 else (1.0,):
        inverse, stalled, likelihood = _inverse(scale**2 * unscaled, variance, residuals, stall, prior.stall)
        if likelihood > best.likelihood:
            scaled = dataclasses.replace(
                prior, common=scale * prior.common, effects=scale * prior.effects, smooth=scale * prior.smooth
            )
            best = dataclasses.replace(best, prior=scaled, inverse=inverse, stalled=stalled, likelihood=likelihood)
    return best


def _contrasted(places: GPInputs, index: Index) -> GPInputs:
    """Returns the places with effects that count from the measured points' value, where all of them have the same one:
    no measurement tells such an effect from the common error, so it must not carry the error to points without it.

    For the same reason a part of the error may be that value's alone: for each such axis the points that have it share
    a further effect, of the deviation of a switch or a doubling, which the others do not have.
    """
    measured = places.effects[index]
    same = np.all(measured == measured[0], axis=0)
    effects = places.effects - np.where(same, measured[0], np.float32(0.0))
    of_axes = effects[:, : places.place.shape[1]]
    alike = (of_axes == 0)[:, same[: of_axes.shape[1]] & np.any(of_axes != 0, axis=0)]
    by_device = (1 - places.host_share).astype(np.float32)[:, None]
    shared = np.float32(DOUBLING_SIGMA) * by_device * alike.astype(np.float32)
    return dataclasses.replace(places, effects=np.concatenate([effects, shared], axis=1))


def _inverse(
    kernel: Array, noise: Array, residuals: Array, stall: Array, stall_prior: float
) -> tuple[Array, Mask, float]:
    """Returns (inverse covariance of the residuals, mask of stalls, log likelihood). Stalls are picked one by one, the
    likeliest first, up to `MOST_STALLED`; `stall` has the chance of each on a usual machine, and each stall makes the
    next one likelier.

    The likelihood of one residual, given the others, is normal around its prediction from them (Rasmussen and Williams,
    section 5.4.2). For a stall this normal is wider by `STALL_SIGMA`, and only its slower half counts.
    """
    covariance = kernel + np.diag(noise)
    inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    _, log_determinant = np.linalg.slogdet(covariance)
    likelihood = -0.5 * (float(residuals @ inverse @ residuals) + float(log_determinant))
    likelihood -= 0.5 * len(residuals) * math.log(2 * math.pi)
    usual = np.ones(len(residuals), dtype=bool)
    while stall.any() and (~usual).sum() + 1 <= MOST_STALLED * len(residuals):
        variance = 1 / np.diag(inverse)
        off = (inverse @ residuals) * variance
        wider = variance + STALL_SIGMA**2
        evidence = _stall_evidence(stall, ~usual)
        findings = _StallFindings((~usual).sum(), stall.sum() - stall, evidence.sum() - evidence)
        chance = findings.chance(stall, stall_prior)
        gain = 0.5 * (off**2 / variance - off**2 / wider - np.log(wider / variance)) + np.log(2 * chance / (1 - chance))
        gain = np.where(usual & (off > 0), gain, -np.inf)
        likeliest = int(gain.argmax())
        if gain[likeliest] <= 0:
            break
        usual[likeliest] = False
        likelihood += float(gain[likeliest])
        column = inverse[:, likeliest]
        weight = STALL_SIGMA**2 / (1 + STALL_SIGMA**2 * column[likeliest])
        inverse = inverse - weight * np.outer(column, column)
    return inverse, ~usual, likelihood


def _stall_chance(places: GPInputs, index: Index, prior: Prior) -> Array:
    """Returns the prior chance that a measurement of each point is a stall; zeros where the prior has no stalls."""
    return np.maximum(places.stall[index], prior.stall) if prior.stall else np.zeros(len(index))


def _stall_evidence(chance: Array, stalled: Mask) -> Array:
    """Returns the log likelihood of each measurement, stalled or not, on a machine that stalls often over that on a
    usual one, where each stalls with its `chance`.
    """
    usual = np.minimum(chance, MOST_STALLS)
    return np.where(stalled, np.log(MOST_STALLS / usual), np.log((1 - MOST_STALLS) / (1 - usual)))


@dataclasses.dataclass(frozen=True, slots=True)
class _StallFindings:
    """Findings of measurements of one machine on its stalls."""

    number: int
    expected: Array
    """Number that their chances add up to."""
    evidence: Array
    """Sum of `_stall_evidence`."""

    def chance(self, before: Array, share: float) -> Array:
        """Returns the chance of a stall, which was `before` without them. Most machines hardly ever stall, and a
        `share` of them stalls often, with the chance `MOST_STALLS`; which kind one is, Bayes' rule tells. Of the
        others, the chance is scaled by the posterior mean of a rate whose prior is a gamma distribution of mean 1 and
        shape `STALL_EVIDENCE`.
        """
        from scipy.special import expit  # imported here, so that a command's --help does not wait for it

        often = expit(self.evidence + math.log(share / (1 - share)))
        scale = (STALL_EVIDENCE + self.number) / (STALL_EVIDENCE + self.expected)
        return often * MOST_STALLS + (1 - often) * np.minimum(scale * before, MOST_STALLS)


def _kernel(places: GPInputs, rows: Index, others: Index, prior: Prior) -> Array:
    """Returns common^2 x device's shares + effects^2 x linear + smooth^2 x RBF: of a step for which the host sets the
    pace, the common error of what devices compute tells little, nor does such a step tell of it.
    """
    a, b = (places.place[index].astype(np.float64) / LENGTH for index in (rows, others))
    apart = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    linear = places.effects[rows].astype(np.float64) @ places.effects[others].astype(np.float64).T
    smooth = prior.smooth**2 * np.exp(-0.5 * np.maximum(apart, 0.0))
    by_device = np.outer(1 - places.host_share[rows], 1 - places.host_share[others])
    return prior.common**2 * by_device + prior.effects**2 * linear + smooth


def _variance(places: GPInputs, index: Index, prior: Prior) -> Array:
    linear = (places.effects[index].astype(np.float64) ** 2).sum(axis=1)
    return (prior.common * (1 - places.host_share[index])) ** 2 + prior.smooth**2 + prior.effects**2 * linear


def _noise(places: GPInputs, index: Index, prior: Prior, waited: Array | None = None) -> Array:
    host_share = places.host_share[index]
    if waited is not None:
        host_share = np.maximum(host_share, waited)
    return prior.noise**2 + (prior.host * host_share) ** 2 + (prior.point * places.sigma[index]) ** 2


def teachers(away: Array) -> Index:
    """Returns the positions of at most `MAX_TRAINING_POINTS` of the measurements. Half are those least `away` from the
    best time or from the memory limit; the others are spread evenly over the rest.
    """
    if len(away) <= MAX_TRAINING_POINTS:
        return np.arange(len(away))
    order = np.argsort(away, kind="stable")
    near, farther = order[: MAX_TRAINING_POINTS // 2], np.sort(order[MAX_TRAINING_POINTS // 2 :])
    spread = farther[np.linspace(0, len(farther) - 1, MAX_TRAINING_POINTS - len(near)).astype(np.int64)]
    return np.sort(np.concatenate([near, spread]))
