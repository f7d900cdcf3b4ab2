"""Predictions with 80 % intervals: step time, memory and the probability of fitting, for columns of any length."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from platform.cost_model.columns import DEEPSPEED, Array, Columns, Mask
from platform.cost_model.host import pace_share
from platform.cost_model.memory import PeakMemory, peak_memory
from platform.cost_model.step_time import StepTime, step_time

Z_80 = 1.2816
"""Standard deviations on each side of a normal distribution's 80 %."""

BASE_SIGMA = 0.055
"""Log deviation of compute alone: what kernels, clocks and software versions change. With it the 80 % intervals hold
82 to 86 % of published runs and 89 % of this project's on H200s (docs/cost-model.md)."""
SHARE_SIGMA = {
    "attention_s": 0.2,
    "host_s": 0.2,
    "tensor_s": 0.4,
    "pipeline_s": 0.5,
    "bubble_s": 0.25,
    "data_s": 0.6,
    "optimizer_s": 0.4,
}
"""Log deviation of each other part of a step, weighted with its share. Attention's kernels are a factor of 1.5 to 2
apart from one version to the next (FlashAttention-2, arXiv 2307.08691, figures 4 to 7; FlashAttention-3, arXiv
2407.08608, figure 5), so that half of 1.5, as a ratio, is one deviation. The host's: GPT-2 under FSDP2 at micro-batch
8 takes 45 to 61 ms a micro-step on several H200 hosts of one device, compiled or not (this project)."""
ZERO_3_SIGMA = 0.30
"""Of DeepSpeed's stage 3, whose prefetching differs most between versions."""
MEMORY_SIGMA = 0.06
CHUNK = 2**16
"""Points computed at once: arrays of a few thousand of its rows stay in a core's cache."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Arrays of one length, a row a point."""

    step: StepTime
    memory: PeakMemory
    sigma: Array
    """Log deviation of the step time."""
    low_s: Array
    high_s: Array
    """The 80 % interval of the step time."""
    fit_probability: Array
    """That it runs at all."""
    ok_probability: Array
    """That its allocator's pools fit too: where they do not, it runs and thrashes."""

    @property
    def expected_s(self) -> Array:
        """Mean step time; `step.total_s` is the median."""
        return expected_s(self.step.total_s, self.low_s, self.high_s)

    @property
    def fits(self) -> Mask:
        """Whether fitting is likelier than not."""
        return self.fit_probability > 0.5


def expected_s(median_s: Array, low_s: Array, high_s: Array) -> Array:
    """Mean of a log-normal time, from its median and its 80 % interval: median x exp(sigma^2 / 2).

    What is chosen by it costs least on average: of two layouts with one median the less certain one is the worse bet,
    since it may lose more than it can win.
    """
    sigma = np.log(high_s / low_s) / (2 * Z_80)
    return median_s * np.exp(sigma**2 / 2)


def normal_cdf(values: Array) -> Array:
    """The standard normal distribution function, by the logistic approximation of Bowling et al. (2009), error 1e-4."""
    bounded = np.clip(values, -8.0, 8.0)
    return 1.0 / (1.0 + np.exp(-bounded * (1.5976 + 0.07056 * bounded * bounded)))


def zero_shot_sigma(columns: Columns, step: StepTime) -> Array:
    """Log deviation of a step time that nothing was measured for: independent errors of its parts."""
    variance = BASE_SIGMA**2 + columns.spread**2
    for part, sigma in SHARE_SIGMA.items():
        seconds = under_the_host_s(columns, step) if part == "host_s" else getattr(step, part)
        variance = variance + (sigma * seconds / step.total_s) ** 2
    is_zero_3 = (columns.engine == DEEPSPEED) & (columns.zero_stage == 3)
    return np.sqrt(variance + np.where(is_zero_3, ZERO_3_SIGMA**2, 0.0))


def under_the_host_s(columns: Columns, step: StepTime) -> Array:
    """Seconds that grow and shrink with the host's speed: of all that a device computes and waits in, as far as the
    host sets the pace."""
    busy = step.compute_s + step.attention_s + step.tensor_s
    together = np.maximum(busy + step.host_s, 1e-12)
    return np.where(columns.blocking > 0, step.host_s, together * pace_share(busy, together))


def fit_probability(columns: Columns, needed_gib: Array) -> Array:
    """Probability that so much is below the capacity, its error taken for log-normal."""
    return normal_cdf(np.log(columns.capacity_gib / np.maximum(needed_gib, 1e-9)) / MEMORY_SIGMA)


def _predict_chunk(columns: Columns) -> Prediction:
    step, memory = step_time(columns), peak_memory(columns)
    sigma = zero_shot_sigma(columns, step)
    width = np.exp(Z_80 * sigma)
    return Prediction(
        step=step,
        memory=memory,
        sigma=sigma,
        low_s=step.total_s / width,
        high_s=step.total_s * width,
        fit_probability=fit_probability(columns, memory.needed_gib),
        ok_probability=fit_probability(columns, memory.pooled_gib),
    )


def predict(columns: Columns) -> Prediction:
    """Predicts all rows, or all points of a grid row by row, a chunk at a time."""
    shape = columns.shape
    rows = max(CHUNK // math.prod(shape[:-1]), 1)
    if not shape or shape[-1] <= rows:
        return _joined([_predict_chunk(columns)], [shape])
    starts = range(0, shape[-1], rows)
    parts = [_predict_chunk(columns.take(slice(start, start + rows))) for start in starts]
    return _joined(parts, [(*shape[:-1], min(rows, shape[-1] - start)) for start in starts])


def _joined(parts: Sequence[Prediction], shapes: Sequence[tuple[int, ...]]) -> Prediction:
    """One prediction of 1-d arrays from those of chunks of `shapes`; of no shape where the only one has none."""

    def joined(values: Sequence[Array]) -> Array:
        whole = [np.broadcast_to(value, shape) for value, shape in zip(values, shapes, strict=True)]
        if not shapes[0]:
            return np.asarray(whole[0], dtype=np.float64)
        return np.concatenate(whole, axis=-1, dtype=np.float64).reshape(-1)

    def fields(
        kind: type[StepTime] | type[PeakMemory], values: Sequence[StepTime] | Sequence[PeakMemory]
    ) -> dict[str, Array]:
        return {
            field.name: joined([getattr(value, field.name) for value in values]) for field in dataclasses.fields(kind)
        }

    return Prediction(
        step=StepTime(**fields(StepTime, [part.step for part in parts])),
        memory=PeakMemory(**fields(PeakMemory, [part.memory for part in parts])),
        **{
            name: joined([getattr(part, name) for part in parts])
            for name in ("sigma", "low_s", "high_s", "fit_probability", "ok_probability")
        },
    )
