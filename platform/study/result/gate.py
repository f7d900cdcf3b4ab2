"""The numerics gate: a winner must reproduce the loss and gradient-norm curves of a reference layout."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from search_spaces.candidate import Candidate
from trainers.records.journal import GateCurves
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.axis import axes_of, choices_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Precision, Recipe

TOLERANCES: dict[Precision, tuple[float, float]] = {
    "fp32": (1e-4, 1e-3),
    "tf32": (1e-3, 1e-2),
    "bf16": (5e-3, 3e-2),
    "fp16": (5e-3, 3e-2),
    "fp8_tensorwise": (1e-2, 5e-2),
    "fp8_rowwise": (1e-2, 5e-2),
}
"""Largest relative differences of loss and of gradient norm, those of the contract test (`tests/contract`).

Where bf16 rounds otherwise, as fused kernels do, values here and there cross a rounding to FP8, which is 16 times as
coarse: the contract's tiny models are up to 3.4e-3 and 1.2e-2 apart between eager attention and sdpa."""
POWERSGD_TOLERANCES = (1e-2, 0.3)
"""PowerSGD's factors begin as random numbers, drawn bucket by bucket, and a kernel that yields gradients in another
order fills buckets in another way: over the contract test's 20 steps another seed moves losses by up to 0.5 % and norms
by up to 17 % at rank 1 (0.2 and 5 % at rank 4).
"""


def tolerances(recipe: Recipe) -> tuple[float, float]:
    """Returns how far loss and gradient norm may differ from the reference's."""
    return POWERSGD_TOLERANCES if recipe.powersgd_rank else TOLERANCES[recipe.compute_precision]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateVerdict:
    """The difference of a layout's curves from the reference's."""

    layout: Layout
    reference: Layout
    steps: int
    sequences: int
    loss_error: float
    """Largest relative difference of the loss over the steps."""
    norm_error: float
    loss_tolerance: float
    norm_tolerance: float

    @property
    def passed(self) -> bool:
        """Whether both stay within their tolerance; False where a loss is not finite."""
        return self.loss_error <= self.loss_tolerance and self.norm_error <= self.norm_tolerance

    @property
    def sentence(self) -> str:
        """The verdict as a sentence with its figures."""
        figures = (
            f"over {self.steps} steps of {self.sequences} sequences its loss stays within {self.loss_error:.1e} and its"
            f" gradient norm within {self.norm_error:.1e} of {self.reference.label}"
            f" (allowed: {self.loss_tolerance:g} and {self.norm_tolerance:g})"
        )
        return f"Numerics gate passed: {figures}." if self.passed else f"Numerics gate failed: {figures}."


def compare(reference: GateCurves, curves: GateCurves) -> GateVerdict:
    """Returns the verdict on `curves`, of the same recipe and the same gate as `reference`.

    Steps at which either gradient norm is not finite are left out of the norm's error: fp16 scaling skips them.
    """
    loss_tolerance, norm_tolerance = tolerances(curves.recipe)
    pairs = zip(reference.grad_norms, curves.grad_norms, strict=True)
    return GateVerdict(
        layout=curves.layout,
        reference=reference.layout,
        steps=curves.steps,
        sequences=curves.sequences,
        loss_error=_largest(zip(reference.losses, curves.losses, strict=True)),
        norm_error=_largest(
            (norm, reference_norm)
            for norm, reference_norm in pairs
            if math.isfinite(norm) and math.isfinite(reference_norm)
        ),
        loss_tolerance=loss_tolerance,
        norm_tolerance=norm_tolerance,
    )


def verdict_on(layout: Layout, recipe: Recipe, gates: Iterable[GateCurves]) -> GateVerdict | None:
    """Returns the verdict on `layout` from the last curves in a journal; None where curves are missing."""
    of_recipe = [gate for gate in gates if gate.recipe == recipe]
    curves_of_layout = next((curves for curves in reversed(of_recipe) if curves.layout == layout), None)
    if curves_of_layout is None:
        return None
    length = (curves_of_layout.steps, curves_of_layout.sequences)
    references = [
        curves
        for curves in of_recipe
        if curves.is_reference and curves.layout != layout and (curves.steps, curves.sequences) == length
    ]
    return compare(references[-1], curves_of_layout) if references else None


def has_curves(best: Measurement, gates: Iterable[GateCurves]) -> bool:
    """Returns whether the winner's own curves were recorded; curves recorded as another layout's reference do not
    count.
    """
    return any(gate.recipe == best.recipe and gate.layout == best.layout and not gate.is_reference for gate in gates)


def references(recipe: Recipe, candidates: Sequence[Candidate], measurements: Sequence[Measurement]) -> list[Layout]:
    """Returns the layouts that may serve as the recipe's reference, the best one first.

    Layouts with the fewest fused kernels come first, and of as many those with earlier values of their axes, since a
    compiler, a fused kernel or a chunked loss may be what is wrong. Among these come layouts that ran, the one with the
    least complex first, then layouts that were not tried, the most frugal first.
    """
    timed_layouts = {
        measurement.layout
        for measurement in measurements
        if measurement.recipe == recipe and measurement.outcome in TIMED
    }
    failed_layouts = {
        measurement.layout
        for measurement in measurements
        if measurement.recipe == recipe and measurement.outcome in _CANNOT
    } - timed_layouts
    layouts = {
        candidate.layout: None
        for candidate in candidates
        if candidate.recipe == recipe and candidate.layout not in failed_layouts
    }

    choices = choices_of(Layout)
    kernels = {name: choices[name] for name, declared in axes_of(Layout).items() if declared.column == "kernels"}

    def order(layout: Layout) -> tuple[int, int, bool, tuple[int, ...]]:
        fused = sum(layout.is_set(name) for name in kernels)
        further = sum(values.index(getattr(layout, name)) for name, values in kernels.items())
        if layout in timed_layouts:
            return fused, further, False, layout.complexity_rank
        return fused, further, True, (*layout.memory_order, *layout.complexity_rank)

    return sorted(layouts, key=order)


_CANNOT = frozenset({Outcome.OOM, Outcome.FAILED, Outcome.HUNG, Outcome.DIVERGED})


def _largest(pairs: Iterable[tuple[float, float]]) -> float:
    """Returns the largest relative difference; infinite where a value is not finite."""
    errors = [abs(reference - value) / max(abs(value), 1e-12) for value, reference in pairs]
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)
