"""The result of a plan: layouts with predictions, and counts of omitted ones."""

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
"""Step fields that make up each reported part of a step."""
AS_FAST = 1e-6
"""Relative difference of step times below which two layouts count as equally fast."""


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
    """Model FLOP/s divided by the datasheet peak; model FLOPs count by the "products" convention."""
    peak_tflops: float
    """Peak of one device in the recipe's precision."""
    needed_gib: float
    """Memory that a device must have: the largest rank's peak, context and communicators."""
    fit_probability: float
    ok_probability: float
    """Probability that the layout runs within memory, including the allocator's pools; 1 if measured."""
    shares: Mapping[str, float]
    """Share of the step by the names in `PARTS`."""
    loses_by: str
    """The part of the step that loses most time against the best layout; "" if the layout is not slower."""
    measured: bool = False
    """Whether the step time was measured on the same number of these devices. False for a prediction."""

    def days(self, tokens: float) -> float:
        return tokens / self.tokens_per_s / DAY_S


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """A group of layouts with the same prediction as another layout."""

    axes: tuple[str, ...]
    """Axes in which the group differs from that layout."""
    count: int

    @property
    def words(self) -> str:
        """Text such as "and 3 that differ in prefetch alone"; "" for an empty group."""
        if not self.count:
            return ""
        alone = (
            f"{self.axes[0]} alone" if len(self.axes) == 1 else " or ".join((", ".join(self.axes[:-1]), self.axes[-1]))
        )
        return f"and {self.count} that {'differs' if self.count == 1 else 'differ'} in {alone}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPlan:
    """The layouts of a plan, and counts of omitted ones."""

    recipe: Recipe
    cluster: ClusterSpec
    best: tuple[PredictedLayout, ...]
    """Layouts that run within memory with a probability of `SURE` or more, fastest first, then less probable ones."""
    distinct: tuple[tuple[PredictedLayout, Alike], ...]
    """`best` with each group of equal predictions as one entry: the first layout with the others of its group."""
    faster_if_it_fits: PredictedLayout | None
    """The fastest point that is less sure to fit than the first of `best`, if it is faster."""
    num_layouts: int
    """Number of layouts with a point that fits."""
    num_too_large: int
    """Number of layouts without any micro-batch that fits in memory."""
    lost_by: tuple[tuple[str, int], ...]
    """(part in `PARTS` that loses most time against the best layout, number of layouts); for fitting layouts."""
    num_points: int
    skipped: tuple[tuple[str, int], ...]
    """(reason, number of points)."""
    nearest: str
    """The point that comes nearest to fitting, as a clause for plans where nothing fits."""
    learned: str = ""
    """Sentence on the corrections from an earlier study; "" without one."""
    at_ends: tuple[str, ...] = ()
    """A sentence for each axis on which the first of `best` has the last listed value of the space."""
