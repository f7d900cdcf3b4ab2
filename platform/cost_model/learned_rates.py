"""Derives the rates of links inside a node and between nodes from measured steps, separately from compute.

The regression (`regression`) corrects errors of some tens of percent. A link ten times slower than assumed also changes
how much compute hides, so its rate is corrected and all steps are predicted again. Each rate has a factor on its
seconds with a mixture prior: most probably the assumed rate is right, otherwise it is wrong by any amount, links
between nodes by the most (spike and slab; George and McCulloch, "Variable Selection via Gibbs Sampling", 1993). The
posterior is summed over a grid of factors. No rate changes unless some link is probably wrong, and a correction
explains most of the timings.

A step is split if the parts were timed: the seconds of an additional micro-step, and the seconds once per step, such as
the exchange of gradients after accumulation. A single measurement then distinguishes a slow link from slow compute.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from platform.cost_model.columns import Array, Columns
from platform.cost_model.gp_inputs import Index
from platform.cost_model.links import devices_of
from platform.cost_model.predict import zero_shot_sigma
from platform.cost_model.stalls import STALL_SIGMA
from platform.cost_model.step_time import StepTime, step_time

SCALED: Mapping[str, Mapping[str, float]] = {
    "compute": {"matmul_flops": -1, "plain_flops": -1, "flash_flops": -1, "bandwidth": -1},
    "inside": {"intra_bandwidth": -1, "intra_latency": 1},
    "between": {"inter_bandwidth": -1, "group_bandwidth": -1, "inter_latency": 1, "inter_hop": 1},
}
"""Columns that each rate's factor scales, with the power of the factor."""
LINKS = ("inside", "between")
"""The rates that are corrected."""
WRONG: Mapping[str, tuple[float, float]] = {"compute": (0.1, 0.35), "inside": (0.1, 1.5), "between": (0.2, 2.0)}
"""(probability that an assumed rate is wrong, log deviation of its factor in this case). Estimates: devices match a
catalogue's figures within some percent, networks differ by an order of magnitude and are often unknown.
"""
COMMON_SIGMA: Mapping[str, float] = {"step": 0.1, "micro": 0.1, "once": 0.3}
"""Log deviation of the error that all rows share with correct rates, by kind of timing."""
FITTING = 0.9
"""Least share of the timings that corrected rates must explain."""
SURE = 0.7
"""Probability of a wrong rate from which rates are corrected."""
COMMON_STEPS = np.linspace(-2.4, 2.4, 7)
"""Common errors to try, in deviations."""
STALL_CHANCE = 0.003
"""Probability that a measurement is a stall of the machine; less than that of a slow link."""
USUAL_SURPRISE = 2.0
"""Standardized residual up to which a timing counts as usual."""
ONCE_SIGMA = 0.3
"""Least log deviation of the seconds once per step, the difference of two larger times."""
ONCE_FLOOR = (0.2, 0.005)
"""The seconds once per step are noise below the sum of these shares of a micro-step and of the step."""
LEAST = math.log(1.5)
"""Log factor below which a link counts as assumed; the regression learns such errors."""
SAME = 0.05
"""Difference of two log factors below which they count as equal."""
MOST_ROWS = 16
"""Largest number of measurements to compare, because the grid is predicted for each of them."""
GRIDS: Mapping[str, Array] = {
    "compute": np.array([-1.2, -0.8, -0.5, -0.25, 0.0, 0.25, 0.5, 0.8, 1.2]),
    "inside": np.arange(-2.0, 5.01, 0.5),
    "between": np.arange(-3.0, 6.01, 0.5),
}
"""Log factors to try, including 0; finer ones around the most probable follow."""
FINER = np.linspace(-0.5, 0.5, 9)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RateFactors:
    """Log factors of each link's seconds: 0 for the assumed rate, log 10 for a link that is ten times slower.

    Slow compute is distinguished from slow links but not corrected: the regression's common error covers it.
    """

    inside: float = 0.0
    between: float = 0.0
    between_sigma: float | None = None
    """Log deviation of a corrected rate between nodes."""

    def __bool__(self) -> bool:
        return any((self.inside, self.between))

    def is_near(self, other: "RateFactors") -> bool:
        """Returns whether predictions with the two differ too little to matter."""
        return bool(self) == bool(other) and all(
            abs(getattr(self, name) - getattr(other, name)) < SAME for name in LINKS
        )

    def on(self, columns: Columns) -> Columns:
        """Returns the rows with the corrected rates."""
        if not self:
            return columns
        changed = _scaled(columns, {name: np.asarray(getattr(self, name)) for name in LINKS})
        if self.between_sigma is None:
            return changed
        link_sigma = np.minimum(columns.link_sigma, self.between_sigma)
        return Columns.of({**changed.arrays(), "link_sigma": link_sigma})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TimedRows:
    """Measured steps of some rows."""

    columns: Columns
    step_s: Array
    micro_s: Array
    """Seconds of an additional micro-step; NaN if only the whole step was timed."""

    def take(self, index: Index) -> "TimedRows":
        return TimedRows(columns=self.columns.take(index), step_s=self.step_s[index], micro_s=self.micro_s[index])


def learned_factors(rows: TimedRows) -> RateFactors:
    """Returns the factors implied by the measured rows: none if all rows are as predicted, up to usual errors."""
    devices = np.broadcast_to(devices_of(rows.columns), rows.step_s.shape)
    names = ["compute"] + ["inside"] * bool((devices > 1).any())
    names += ["between"] * bool((devices > rows.columns.devices_per_node).any())
    if len(names) == 1:
        return RateFactors()
    if len(devices) > MOST_ROWS:
        rows = rows.take(np.linspace(0, len(devices) - 1, MOST_ROWS).astype(np.int64))
    assumed = {name: np.zeros((1, 1)) for name in names}
    if all((np.abs(timed.off) <= USUAL_SURPRISE * timed.sigma).all() for timed in _compared(rows, assumed)):
        return RateFactors()
    grids = {name: GRIDS[name] for name in names}
    chances = _posterior(rows, grids, {name: _log_prior(name) for name in names})
    wrong = _wrong_rates(grids, chances)
    if not set(wrong) & set(LINKS):
        return RateFactors()
    best = dict(zip(names, np.unravel_index(int(chances.argmax()), chances.shape), strict=True))
    around = {name: GRIDS[name][best[name]] + FINER if name in wrong else np.zeros(1) for name in names}
    priors = {name: -0.5 * (grid / WRONG[name][1]) ** 2 for name, grid in around.items()}
    chances = _posterior(rows, around, priors)
    likeliest = np.unravel_index(int(chances.argmax()), chances.shape)
    best_fit = {name: grid[[place]][:, None] for (name, grid), place in zip(around.items(), likeliest, strict=True)}
    return _means(around, chances, wrong) if _fits(rows, best_fit) else RateFactors()


def _fits(rows: TimedRows, factors: Mapping[str, Array]) -> bool:
    """Returns whether most timings of each kind are as predicted with these log factors, up to usual errors. If not,
    another part of the predictions is wrong and rates must not change.
    """
    return all(
        (np.abs(timed.off) <= USUAL_SURPRISE * np.hypot(timed.sigma, timed.common)).mean() >= FITTING
        for timed in _compared(rows, factors)
    )


def _wrong_rates(grids: Mapping[str, Array], chances: Array) -> tuple[str, ...]:
    """Returns the set of rates that is most probably wrong; empty if probably none is."""
    off = np.meshgrid(*(grid != 0.0 for grid in grids.values()), indexing="ij")
    patterns = np.sum([2**place * mask for place, mask in enumerate(off)], axis=0)
    shares = np.bincount(patterns.reshape(-1), weights=chances.reshape(-1), minlength=2 ** len(grids))
    if shares[0] > 1 - SURE:
        return ()
    likeliest = int(shares.argmax())
    return tuple(name for place, name in enumerate(grids) if likeliest >> place & 1)


def _means(grids: Mapping[str, Array], chances: Array, wrong: Sequence[str]) -> RateFactors:
    """Returns the posterior means of the factors of the `wrong` links."""
    means: dict[str, float] = {}
    sigma: float | None = None
    for place, (name, grid) in enumerate(grids.items()):
        if name in wrong and name in LINKS:
            marginal = _marginal(chances, place)
            mean = float(marginal @ grid)
            if abs(mean) < LEAST:
                continue
            means[name] = mean
            if name == "between":
                sigma = math.sqrt(float(marginal @ (grid - means[name]) ** 2))
    return RateFactors(**means, between_sigma=sigma)


def _marginal(chances: Array, place: int) -> Array:
    return chances.sum(axis=tuple(axis for axis in range(chances.ndim) if axis != place))


def _log_prior(name: str) -> Array:
    """Returns the log prior probability of each log factor of the rate's grid."""
    grid, (chance, sigma) = GRIDS[name], WRONG[name]
    density = np.where(grid == 0.0, 0.0, np.exp(-0.5 * (grid / sigma) ** 2) * np.gradient(grid))
    return np.log(np.where(grid == 0.0, 1 - chance, chance * density / density.sum()))


def _posterior(rows: TimedRows, grids: Mapping[str, Array], log_priors: Mapping[str, Array]) -> Array:
    """Returns the probability of each combination of log factors, one axis per rate."""
    mesh = np.meshgrid(*grids.values(), indexing="ij")
    log = np.sum(np.meshgrid(*(log_priors[name] for name in grids), indexing="ij"), axis=0)
    factors = {name: values.reshape(-1, 1) for name, values in zip(grids, mesh, strict=True)}
    for timed in _compared(rows, factors):
        log = log + timed.log_likelihood.reshape(log.shape)
    chances = np.exp(log - log.max())
    return np.asarray(chances / chances.sum(), dtype=np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """Timed seconds against predictions, [combinations of factors, rows]."""

    off: Array
    """log(measured / predicted)."""
    sigma: Array
    """Deviation of `off` between rows."""
    common: float
    """Deviation of the error that all rows share."""

    @property
    def log_likelihood(self) -> Array:
        """Log likelihood of each combination, summed over the common error; any row may be a stall."""
        stalled = STALL_CHANCE * _density(self.off, np.asarray(STALL_SIGMA))
        shares = np.exp(-0.5 * COMMON_STEPS**2)
        total = np.zeros(self.off.shape[:-1])
        for step, share in zip(COMMON_STEPS, shares / shares.sum(), strict=True):
            usual = (1 - STALL_CHANCE) * _density(self.off - step * self.common, self.sigma)
            total = total + share * np.exp(np.log(usual + stalled).sum(axis=-1))
        return np.log(np.maximum(total, 1e-300))


def _density(off: Array, sigma: Array) -> Array:
    return np.exp(-0.5 * (off / sigma) ** 2) / sigma


def _compared(rows: TimedRows, factors: Mapping[str, Array]) -> list[_Compared]:
    """Returns the rows' timings against predictions with log `factors` [combinations, 1]: whole steps or, if timed, the
    seconds per micro-step and once per step.
    """
    engine = np.broadcast_to(rows.columns.engine, rows.step_s.shape)
    parts: dict[str, list[tuple[Array, Array]]] = {}
    for code in np.unique(engine):
        for is_split in (False, True):
            some = np.flatnonzero((engine == code) & (np.isfinite(rows.micro_s) == is_split))
            if len(some):
                measured = rows.take(some)
                for kind, pair in _timed(measured, _scaled(measured.columns, factors), is_split=is_split).items():
                    parts.setdefault(kind, []).append(pair)
    return [
        _Compared(
            off=np.concatenate([off for off, _ in pairs], axis=-1),
            sigma=np.concatenate([sigma for _, sigma in pairs], axis=-1),
            common=COMMON_SIGMA[kind],
        )
        for kind, pairs in parts.items()
    ]


def _timed(rows: TimedRows, columns: Columns, *, is_split: bool) -> dict[str, tuple[Array, Array]]:
    """Returns (log error, deviation) of the timings of one engine's rows, by kind of timing."""
    step = step_time(columns)
    if not is_split:
        return {"step": _error(rows.step_s, step.total_s, zero_shot_sigma(columns, step))}
    fixed, micro = _split(columns, step)
    measured = np.maximum(rows.step_s - columns.grad_accum * rows.micro_s, 0.0)
    floor = ONCE_FLOOR[0] * rows.micro_s + ONCE_FLOOR[1] * rows.step_s
    predicted = np.maximum(fixed.total_s, 1e-12)
    sigma = predicted / (predicted + floor) * np.minimum(zero_shot_sigma(columns, fixed), 1.0)
    return {
        "micro": _error(rows.micro_s, micro.total_s, zero_shot_sigma(columns, micro)),
        "once": _error(measured + floor, predicted + floor, np.hypot(sigma, ONCE_SIGMA)),
    }


def _error(measured_s: Array, predicted_s: Array, sigma: Array) -> tuple[Array, Array]:
    off, wide = np.broadcast_arrays(np.log(measured_s / np.maximum(predicted_s, 1e-12)), sigma)
    return off, wide


def _split(columns: Columns, step: StepTime) -> tuple[StepTime, StepTime]:
    """Returns the parts of a step (seconds once per step, seconds of each micro-step)."""
    longer = Columns.of({**columns.arrays(), "grad_accum": columns.grad_accum + 1})
    more = step_time(longer)
    names = [field.name for field in dataclasses.fields(StepTime)]
    micro = {name: getattr(more, name) - getattr(step, name) for name in names}
    fixed = {name: getattr(step, name) - columns.grad_accum * micro[name] for name in names}
    return StepTime(**fixed), StepTime(**micro)


def _scaled(columns: Columns, factors: Mapping[str, Array]) -> Columns:
    """Returns the rows with each rate slowed by the exponential of its log factor."""
    arrays = columns.arrays()
    for rate, log_factor in factors.items():
        for name, power in SCALED[rate].items():
            arrays[name] = arrays[name] * np.exp(power * log_factor)
    return Columns.of(arrays)
