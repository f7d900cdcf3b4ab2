"""The value of a trial: its expected saving over the planned run, and the rungs worth their seconds."""

import numpy as np

from platform.cost_model.columns import Array
from platform.cost_model.predict import normal_cdf

SMALLEST = 1e-6
"""Deviations below this count as zero."""


def expected_saving(ahead: Array, sigma: Array) -> Array:
    """Returns the expected share of the run's time that a point saves, if it is used only if it fits and is faster.

    `ahead` is log(speed / incumbent's speed), normal with deviation `sigma`. The result is E[max(0, 1 - exp(-ahead))]
    in closed form, the counterpart of expected improvement (Jones et al. 1998) for a run of a given number of tokens.
    """
    sigma = np.maximum(sigma, SMALLEST)
    z = ahead / sigma
    # Far behind the incumbent both terms are tails that cancel. Mills' ratio gives sigma phi(z) / z^2 to first order.
    tail = sigma * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / np.maximum(z**2, 1.0)
    near = normal_cdf(z) - np.exp(np.minimum(0.5 * sigma**2 - ahead, 50.0)) * normal_cdf(z - sigma)
    return np.where(z < -2.5, tail, np.maximum(near, 0.0))


def rungs_worth_it(
    mean: Array, covariance: Array, fits: Array, reference: float, cost: Array, start: float, elsewhere: float
) -> list[int]:
    """Returns the ascending positions of the rungs that a trial should climb: those that save most per device second.

    `mean` and `covariance` describe the rungs' log speeds, `fits` the probability that each fits, `cost` the device
    seconds that each adds to the `start` of a trial, `elsewhere` the expected saving of a device second in its best use
    after this trial. The best rung is chosen. Another joins if it saves more per second, beyond the chosen rungs, than
    `elsewhere`, because a later trial of it would cost another start.
    """
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    alone = expected_saving(mean - reference, sigma) * fits
    chosen = [int(np.argmax(alone / (start + cost)))]
    remaining = [rung for rung in range(len(mean)) if rung not in chosen]
    while remaining:
        best = max(chosen, key=lambda rung: float(alone[rung]))
        further: list[float] = []
        for rung in remaining:
            floor = max(float(mean[best]), reference)
            apart = covariance[rung, rung] + covariance[best, best] - 2 * covariance[rung, best]
            beyond = expected_saving(np.array(mean[rung] - floor), np.array(np.sqrt(max(apart, 0.0))))
            further.append(float(fits[best] * fits[rung] * beyond + (1 - fits[best]) * alone[rung]))
        rates = [gain / float(cost[rung]) for gain, rung in zip(further, remaining, strict=True)]
        place = int(np.argmax(rates))
        if rates[place] <= elsewhere:
            break
        chosen.append(remaining.pop(place))
    return sorted(chosen)
