"""Predicts step time, memory and the probability of fitting, with 80 % intervals, for columns of any length."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from platform.cost_model import blocks, constants, degrees
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.engines import costs_of
from platform.cost_model.evidence import least_sigma
from platform.cost_model.host import pace_share
from platform.cost_model.links import SHARING, spans
from platform.cost_model.memory import PeakMemory, peak_memory
from platform.cost_model.mesh import stages_of, tied_ends_s
from platform.cost_model.stalls import interval, mean_ratio, stall_chance, stalled_s
from platform.cost_model.step_time import StepTime, step_time
from trainers.spec.layout_axes import CUTTING

BASE_SIGMA = constants.number("predict", "BASE_SIGMA")
SHARE_SIGMA = constants.words("predict", "SHARE_SIGMA")
GATED_PASSES_SIGMA = constants.number("predict", "GATED_PASSES_SIGMA")
MEMORY_SIGMA = constants.number("predict", "MEMORY_SIGMA")
CHUNK = 2**16
"""Number of points computed at once, so that the arrays of a chunk stay in a core's cache."""


SURE = 0.9
"""Probability of running within memory from which a point counts as fitting."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Arrays with one row per point."""

    step: StepTime
    memory: PeakMemory
    sigma: Array
    """Log deviation of the step time."""
    low_s: Array
    high_s: Array
    """The 80 % interval of the step time."""
    stall: Array
    """Probability that a step stalls; `sigma` does not include stalls."""
    stalled_s: Array
    """Additional seconds of a stalled step; 0 if unknown."""
    fit_probability: Array
    """Probability that the point runs."""
    ok_probability: Array
    """Probability that the allocator's pools fit too; if they do not, the point runs and thrashes."""

    @property
    def expected_s(self) -> Array:
        """Mean step time; `step.total_s` is the median of steps without a stall.

        Choosing by the mean costs least on average: of two layouts with the same median the less certain one is worse,
        because it may lose more than it can gain.
        """
        return self.step.total_s * mean_ratio(self.sigma, self.stall, self.stalled_s / self.step.total_s)

    @property
    def fits(self) -> Mask:
        """Whether fitting is more probable than not."""
        return self.fit_probability > 0.5


def normal_cdf(values: Array) -> Array:
    """Returns the standard normal distribution function of each value."""
    from scipy.special import ndtr  # a slow import: --help does not wait for it

    return ndtr(values)


def zero_shot_sigma(columns: Columns, step: StepTime) -> Array:
    """Returns the log deviation of a step time before any measurement, from independent errors of its parts.

    It is at least the error of published runs that are as far from measured ones (`evidence`).
    """
    variance = BASE_SIGMA**2 + columns.spread**2 + columns.software.stack_sigma**2
    variance = variance + (columns.software.rate_sigma * step.compute_s / step.total_s) ** 2
    under_the_host = under_the_host_s(columns, step) / step.total_s
    variance = variance + (columns.software.host_sigma * under_the_host) ** 2
    for part, sigma in SHARE_SIGMA.items():
        share = under_the_host if part == "host_s" else getattr(step, part) / step.total_s
        variance = variance + (sigma * share) ** 2
    variance = variance + (GATED_PASSES_SIGMA * _gated_passes_s(columns) / step.total_s) ** 2
    variance = variance + (columns.link_sigma * between_nodes_s(columns, step) / step.total_s) ** 2
    return np.maximum(np.sqrt(variance + costs_of(columns).sigma(columns) ** 2), least_sigma(columns))


def _gated_passes_s(columns: Columns) -> Array:
    """Returns the seconds of element-wise passes of this project's compiled blocks with a gate."""
    c = columns
    counted = (c.compiled_calls > 0) & (c.own_mesh > 0) & (c.blocks["gated"] > 0)
    if not np.any(counted):
        return np.zeros(())
    passes = np.add(*blocks.mean(c, lambda kind: kind.passes_s(c, c.tokens)))
    return np.where(counted, c.grad_accum * stages_of(c).largest * passes, 0.0)


def between_nodes_s(columns: Columns, step: StepTime) -> Array:
    """Returns the seconds of communication between nodes, for each kind of parallelism whose groups span nodes."""
    c = columns
    passed = c.grad_accum * stages_of(c).largest
    between = (
        np.where(spans(c, *SHARING), step.data_s, tied_ends_s(c, costs_of(c).tied_ranks(c)))
        + step.pipeline_s
        + np.where(spans(c, *CUTTING["width"]), step.tensor_s, 0.0)
    )
    for name, seconds in degrees.blocks_s(c, c.tokens, c.full_checkpointing > 0):
        between = between + np.where(spans(c, name), passed * seconds, 0.0)
    return between


def under_the_host_s(columns: Columns, step: StepTime) -> Array:
    """Returns the seconds that scale with the host's speed: the part of compute and waiting that the host paces."""
    busy = step.compute_s + step.attention_s + step.tensor_s + step.exchanges_s
    together = np.maximum(busy + step.host_s, 1e-12)
    share = pace_share(busy, together, columns.software.sharpness)
    return np.where(columns.software.blocking > 0, step.host_s, together * share)


def spread(step: StepTime, sigma: Array, stall: Array, stalled_s: Array) -> dict[str, Array]:
    """Returns the fields of a prediction that describe the spread of its step times."""
    low, high = interval(sigma, stall, stalled_s / step.total_s)
    return {
        "sigma": sigma,
        "stall": stall,
        "stalled_s": stalled_s,
        "low_s": step.total_s * np.exp(low),
        "high_s": step.total_s * np.exp(high),
    }


def fit_probability(columns: Columns, needed_gib: Array) -> Array:
    """Returns the probability that `needed_gib` fits, with a log-normal error; 0 for a pipeline that cannot start."""
    starts = (columns.software.wants_warm_up == 0) | (columns.grad_accum >= columns.parts("depth") - 1)
    return starts * normal_cdf(np.log(columns.capacity_gib / np.maximum(needed_gib, 1e-9)) / MEMORY_SIGMA)


def _predict_chunk(columns: Columns) -> Prediction:
    step, memory = step_time(columns), peak_memory(columns)
    sigma = zero_shot_sigma(columns, step)
    stall = np.broadcast_to(stall_chance(columns), step.total_s.shape)
    return Prediction(
        step=step,
        memory=memory,
        **spread(step, sigma, stall, np.broadcast_to(stalled_s(columns), step.total_s.shape)),
        fit_probability=fit_probability(columns, memory.needed_gib),
        ok_probability=fit_probability(columns, memory.pooled_gib),
    )


def predict(columns: Columns) -> Prediction:
    """Predicts all rows, or all points of a grid row by row, one engine and one chunk at a time."""
    shape = columns.shape
    if not shape:
        return _predict_chunk(columns)
    chunk = max(CHUNK // math.prod(shape[:-1]), 1)
    names = (*_names(Prediction), *_names(StepTime), *_names(PeakMemory))
    filled: dict[str, Array] = {name: np.empty(shape) for name in names}
    engine = np.broadcast_to(columns.engine, shape[-1:])
    for code in np.unique(engine):
        rows = np.flatnonzero(engine == code)
        for start in range(0, len(rows), chunk):
            some = rows[start : start + chunk]
            # Contiguous rows are read and written through a slice, without an index array.
            place = slice(some[0], some[-1] + 1) if some[-1] - some[0] + 1 == len(some) else some
            for name, values in _leaves(_predict_chunk(columns.take(place))):
                filled[name][..., place] = values
    return _of_leaves({name: values.reshape(-1) for name, values in filled.items()})


def take(prediction: Prediction, rows: slice) -> Prediction:
    return _of_leaves({name: values[rows] for name, values in _leaves(prediction)})


def _names(kind: type[StepTime] | type[PeakMemory] | type[Prediction]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in ("step", "memory"))


def _leaves(prediction: Prediction) -> Iterator[tuple[str, Array]]:
    """Yields every array of a prediction and of its parts with its name; names are unique across the parts."""
    for part in (prediction, prediction.step, prediction.memory):
        yield from ((name, getattr(part, name)) for name in _names(type(part)))


def _of_leaves(leaves: Mapping[str, Array]) -> Prediction:
    return Prediction(
        step=StepTime(**{name: leaves[name] for name in _names(StepTime)}),
        memory=PeakMemory(**{name: leaves[name] for name in _names(PeakMemory)}),
        **{name: leaves[name] for name in _names(Prediction)},
    )
