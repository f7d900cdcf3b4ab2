"""A plan's layouts, with what was predicted of each and what was left out."""

import dataclasses
from collections.abc import Mapping

from platform.cost_model.hardware import ClusterSpec
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

DAY_S = 86400.0
PARTS = {
    "compute": ("compute_s", "attention_s", "optimizer_s"),
    "host": ("host_s",),
    "communication": ("tensor_s", "exchanges_s", "pipeline_s", "data_s"),
    "bubble": ("bubble_s",),
}
"""Parts of a step by the name they are reported under."""
AS_FAST = 1e-6
"""Relative difference of step times below which two layouts are predicted as fast as each other."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PredictedLayout:
    """One layout at its best micro-batch."""

    layout: Layout
    micro_batch: int
    grad_accum: int
    step_s: float
    low_s: float
    high_s: float
    """Upper end of the 80 % interval."""
    tokens_per_s: float
    mfu: float
    """Share of the datasheet peak, model FLOPs "products"."""
    peak_tflops: float
    """Peak of one device, in the recipe's precision."""
    needed_gib: float
    """Memory a device must have: the largest rank's peak, context and communicators."""
    fit_probability: float
    ok_probability: float
    """Probability that it runs within memory, with the allocator's pools; 1 where it was measured."""
    shares: Mapping[str, float]
    """Share of the step by the names in `PARTS`."""
    loses_by: str
    """The part of its step that costs it most against the best layout; "" where it is not slower."""
    measured: bool = False
    """Whether the step time was measured on the same number of these devices rather than predicted."""

    def days(self, tokens: float) -> float:
        """Returns the days of training on `tokens`."""
        return tokens / self.tokens_per_s / DAY_S


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """The layouts of which all that is predicted is the same as of another."""

    axes: tuple[str, ...]
    """Axes in which they differ from it."""
    count: int

    @property
    def words(self) -> str:
        """Words on them, such as "and 3 that differ in prefetch alone"; "" where there are none."""
        if not self.count:
            return ""
        alone = (
            f"{self.axes[0]} alone" if len(self.axes) == 1 else " or ".join((", ".join(self.axes[:-1]), self.axes[-1]))
        )
        return f"and {self.count} that {'differs' if self.count == 1 else 'differ'} in {alone}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPlan:
    """Layouts, and what was left out."""

    recipe: Recipe
    cluster: ClusterSpec
    best: tuple[PredictedLayout, ...]
    """Layouts that run within memory with a probability of `SURE`, the fastest first, then the others that may."""
    distinct: tuple[tuple[PredictedLayout, Alike], ...]
    """The same without those of which all that is predicted is the same as of one before, which each has beside it."""
    faster_if_it_fits: PredictedLayout | None
    """The fastest point of those that are less sure to fit than the first of `best`, if it is faster than that."""
    num_layouts: int
    """Layouts with a point that fits."""
    num_too_large: int
    """Layouts without any micro-batch that fits in memory."""
    lost_by: tuple[tuple[str, int], ...]
    """(what costs them most against the best one, number of layouts), for layouts with a point that fits, by
    `PARTS`.
    """
    num_points: int
    skipped: tuple[tuple[str, int], ...]
    """(reason, points)."""
    nearest: str
    """The point that came nearest to fitting, as a clause, for use where nothing fits."""
    learned: str = ""
    """Sentence on the lessons of an old study; "" where none was given."""
    at_ends: tuple[str, ...] = ()
    """A sentence for each axis on which the first of `best` has the last value that the space lists."""
