"""The numerics gate: compares a winner's losses, norms, gradients and optimizer step with a reference layout's."""

import base64
import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from search_spaces.candidate import Candidate
from trainers.records.journal import FIRST_GRADIENTS, ROUNDED, GateCurves
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.axis import axes_of, choices_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import Precision

TOLERANCES: dict[Precision, tuple[float, float]] = {
    "fp32": (1e-4, 1e-3),
    "tf32": (1e-3, 1e-2),
    "bf16": (5e-3, 3e-2),
    "fp16": (5e-3, 3e-2),
    "fp8_tensorwise": (1e-2, 5e-2),
    "fp8_rowwise": (1e-2, 5e-2),
}
"""Largest relative differences of loss and of gradient norm by precision, as in the contract test (`tests/contract`).

FP8 is wider because fused kernels round bf16 values differently, and a value near a rounding boundary may then change
by one FP8 step, which is 16 times as coarse. The contract's tiny models differ by up to 3.4e-3 (loss) and 1.2e-2 (norm)
between eager attention and sdpa.
"""
POWERSGD_TOLERANCES = (1e-2, 0.3)
"""The same with PowerSGD, whose factors start random per bucket. A kernel that returns gradients in another order fills
buckets differently. Over the contract test's 20 steps, another seed moves losses by up to 0.5 % and norms by up to 17 %
at rank 1 (0.2 and 5 % at rank 4).
"""


def tolerances(recipe: Recipe) -> tuple[float, float]:
    """Returns the largest relative differences of loss and of gradient norm."""
    return POWERSGD_TOLERANCES if recipe.powersgd_rank else TOLERANCES[recipe.compute_precision]


FP32_GRADIENTS = (1e-3, 2.5e-4, 2.5e-4)
"""Largest relative differences of fp32 gradients: of any parameter's, of the median parameter's, and of the length of
any parameter's. About three times the differences between two plain layouts on CPUs.
"""
ROUNDING_FACTORS = (1.5, 1.2, 2.0)
"""The same for other precisions, as multiples of the effect of rounding: how far the reference's own gradients move
when the last bit that products read is flipped in every weight. Sound layouts of GPT-2, Llama, Qwen3 and BLOOM (4 to 16
blocks, bf16 and FP8, H200) differ by at most 0.74, 0.62 and 0.98 times that effect (docs/lab/gate.csv#gate-rounding).
"""
ALIBI_FACTORS = (4.0, 3.5, 5.0)
"""The same for models with ALiBi: transformers' eager attention rounds the biases to bf16, fused kernels do not. Sound
layouts of BLOOM (4 and 30 blocks) differ by at most 2.4, 2.0 and 2.8 times.
"""
OLD_GRADIENTS: dict[Precision, tuple[float, float, float]] = {
    "fp32": FP32_GRADIENTS,
    "tf32": (0.22, 8e-2, 5e-2),
    "bf16": (1.7, 0.6, 0.4),
    "fp16": (0.22, 8e-2, 5e-2),
}
"""Fixed tolerances where the reference has no rounding sketch: with compressed exchanges and in older journals."""
BF16_SUMS = (3e-2, 1e-2, 1e-2)
"""Lower bounds of the tolerances of gradients that are summed or exchanged in bf16."""
CHANGE_TOLERANCE = 0.5
"""Tolerance of a parameter's change by Adafactor, in which small gradients may flip the sign of a change."""
CLIP_TOLERANCE = 1e-2
UPDATE_TOLERANCE = 1e-2
"""Largest relative difference between a parameter's change and AdamW's, computed from the layout's own moments."""
LENGTH = "length of "
MEDIAN = " in the median"
FLOOR = 1e-4
"""A parameter whose gradient norm is below this share of the norm of all gradients is compared against that share,
because its own gradient cannot be told from rounding.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GradientTolerances:
    """Largest relative differences of one kind of sketch from the reference's."""

    each_tensor: Mapping[str, float]
    median: float
    length: float


def gradient_tolerances(reference: GateCurves, of: str) -> GradientTolerances | None:
    """Returns the tolerances of the sketches called `of` (gradients or changes); None if they are not compared."""
    recipe, tensors = reference.recipe, reference.tensors
    if of.startswith("changes"):
        return GradientTolerances(
            each_tensor=dict.fromkeys(tensors, CHANGE_TOLERANCE), median=CHANGE_TOLERANCE, length=CHANGE_TOLERANCE
        )
    if recipe.powersgd_rank and of != FIRST_GRADIENTS:  # the first gradients are exchanged whole, later ones as factors
        return None
    is_rounded = "bf16" in (recipe.state_precision, recipe.compression)
    least = BF16_SUMS if is_rounded else (0.0, 0.0, 0.0)
    rounding = _rounding(reference)
    if rounding is None:
        if recipe.compute_precision not in OLD_GRADIENTS:
            return None
        worst, median, length = map(max, OLD_GRADIENTS[recipe.compute_precision], least)
        return GradientTolerances(each_tensor=dict.fromkeys(tensors, worst), median=median, length=length)
    errors, lengths = rounding
    worst, median, length = ALIBI_FACTORS if recipe.model.position == "alibi" else ROUNDING_FACTORS
    of_median = statistics.median(errors.values())  # a single parameter's error may be small by chance
    return GradientTolerances(
        each_tensor={name: max(worst * max(errors[name], of_median), least[0]) for name in tensors},
        median=max(median * of_median, least[1]),
        length=max(length * max(lengths.values()), least[2]),
    )


def _rounding(reference: GateCurves) -> tuple[Mapping[str, float], Mapping[str, float]] | None:
    """Returns the relative effect of rounding on the reference's gradients, by `sketch_errors`; None if not
    measured.
    """
    by_name = {sketch.of: sketch.values for sketch in reference.sketches}
    if ROUNDED not in by_name or FIRST_GRADIENTS not in by_name:
        return None
    return sketch_errors(by_name[ROUNDED], by_name[FIRST_GRADIENTS], reference.tensors)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One comparison of the gate."""

    of: str
    """Name of the compared quantity."""
    error: float
    """The largest relative difference; infinite if a value is not finite."""
    tolerance: float
    where: str = ""
    """The parameter with the largest difference."""

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance

    @property
    def words(self) -> str:
        """The comparison as text; names the parameter if the check fails."""
        place = f" in {self.where}" if self.where and not self.passed else ""
        return f"{self.of} {self.error:.1e}{place} ({self.tolerance:.2g})"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateVerdict:
    """The comparison of a layout's steps with the reference's."""

    layout: Layout
    reference: Layout
    steps: int
    sequences: int
    checks: tuple[Check, ...]
    """Loss and gradient norm over the steps, then the comparisons by tensor, which journals of older versions lack."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def sentence(self) -> str:
        shown = [check for check in self.checks if check.passed == self.passed and MEDIAN not in check.of]
        shown = shown or [check for check in self.checks if not check.passed]
        figures = (
            f"over {self.steps} steps of {self.sequences} sequences beside {self.reference.label}, relative differences"
            f" (and what is allowed): {', '.join(check.words for check in shown)}"
        )
        older = "" if len(self.checks) > 2 else "; gradients were not compared tensor by tensor"
        return f"Numerics gate {'passed' if self.passed else 'failed'}: {figures}{older}."


def gate_figures(verdict: GateVerdict | None) -> dict[str, float | None]:
    """Returns errors and tolerances of loss, gradient norm and worst gradient by their JSON keys; None if absent."""
    checks = verdict.checks if verdict else ()
    gradients = [check for check in checks if check.where and check.of.startswith("gradients")]
    named: dict[str, Check] = dict(zip(("loss", "norm"), checks[:2], strict=False))
    named |= {"gradient": max(gradients, key=lambda check: check.error)} if gradients else {}
    return {
        f"{name}_{field}": getattr(named[name], field) if name in named else None
        for name in ("loss", "norm", "gradient")
        for field in ("error", "tolerance")
    }


def compare(reference: GateCurves, curves: GateCurves) -> GateVerdict:
    """Returns the verdict on `curves`, which have the recipe and gate settings of `reference`.

    A loss or norm that is not finite fails. Exception: in fp16, steps at which neither norm is finite are left out,
    because loss scaling skips them (only in older journals).
    """
    recipe = curves.recipe
    loss_tolerance, norm_tolerance = tolerances(recipe)
    norms = zip(reference.grad_norms, curves.grad_norms, strict=True)
    skips = recipe.compute_precision == "fp16"
    counted = [pair for pair in norms if not (skips and not any(map(math.isfinite, pair)))]
    losses = zip(reference.losses, curves.losses, strict=True)
    return GateVerdict(
        layout=curves.layout,
        reference=reference.layout,
        steps=curves.steps,
        sequences=curves.sequences,
        checks=(
            Check(of="loss", error=_largest(losses), tolerance=loss_tolerance),
            Check(of="gradient norm", error=_largest(counted), tolerance=norm_tolerance),
            *(_tensor_checks(reference, curves) if reference.tensors and curves.tensors else ()),
        ),
    )


def _tensor_checks(reference: GateCurves, curves: GateCurves) -> Iterable[Check]:
    """Yields the comparisons by tensor, then those of the layout's clipping and optimizer step with the recipe's."""
    others = {sketch.of: sketch.values for sketch in reference.sketches}
    for sketch in curves.sketches:
        allowed = gradient_tolerances(reference, sketch.of)
        if allowed is None or sketch.of == ROUNDED:
            continue
        if curves.tensors != reference.tensors or sketch.of not in others:
            yield Check(of=f"{sketch.of}, of other parameters than the reference's:", error=math.inf, tolerance=0.0)
            continue
        errors, lengths = sketch_errors(sketch.values, others[sketch.of], curves.tensors)
        shares = {name: errors[name] / max(allowed.each_tensor[name], 1e-30) for name in errors}
        where = max(shares, key=shares.__getitem__)
        yield Check(of=sketch.of, error=errors[where], tolerance=allowed.each_tensor[where], where=where)
        where = max(lengths, key=lengths.__getitem__)
        yield Check(of=f"{LENGTH}{sketch.of}", error=lengths[where], tolerance=allowed.length, where=where)
        yield Check(of=f"{sketch.of}{MEDIAN}", error=statistics.median(errors.values()), tolerance=allowed.median)
    if curves.clip_error is not None:
        yield Check(of="clipped length", error=curves.clip_error, tolerance=CLIP_TOLERANCE)
    if curves.update_error is not None:
        error, where = curves.update_error, curves.update_tensor
        yield Check(of="optimizer step", error=error, tolerance=UPDATE_TOLERANCE, where=where)


@functools.lru_cache(maxsize=64)
def sketch_errors(
    values: str, reference: str, tensors: tuple[str, ...]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Returns the relative difference of each parameter's sketch from the reference's, and of each sketch's length.

    Parameters of one number are compared together, as one vector, without lengths: each by itself is a sum over all
    tokens, whose rounding error may be large by chance.
    """
    ours, others = (_sums(text, len(tensors)) for text in (values, reference))
    are_numbers = np.count_nonzero(ours, axis=1) + np.count_nonzero(others, axis=1) <= 2
    lengths, differences = np.linalg.norm(others, axis=1), np.linalg.norm(ours - others, axis=1)
    longer = np.where(are_numbers, 0.0, np.abs(np.linalg.norm(ours, axis=1) - lengths))
    lengths = np.where(are_numbers, np.linalg.norm(others[are_numbers]), lengths)
    differences = np.where(are_numbers, np.linalg.norm((ours - others)[are_numbers]), differences)
    allowed = np.maximum(np.maximum(lengths, FLOOR * np.linalg.norm(others)), 1e-30)
    errors = (differences / allowed, longer / allowed)
    apart, length = (np.where(np.isfinite(error), error, np.inf).tolist() for error in errors)
    return dict(zip(tensors, apart, strict=True)), dict(zip(tensors, length, strict=True))


def _sums(text: str, num_tensors: int) -> npt.NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(num_tensors, -1).astype(np.float64)


def verdict_on(layout: Layout, recipe: Recipe, gates: Iterable[GateCurves]) -> GateVerdict | None:
    """Returns the verdict on `layout` from the last curves in a journal; None if its or the reference's are missing."""
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
    """Returns whether the winner's own curves were recorded. Curves recorded as a reference do not count."""
    return any(gate.recipe == best.recipe and gate.layout == best.layout and not gate.is_reference for gate in gates)


def references(recipe: Recipe, candidates: Sequence[Candidate], measurements: Sequence[Measurement]) -> list[Layout]:
    """Returns the layouts that may be the recipe's reference, the best first.

    Ordered by the number of fused kernels, then by the position of the kernels' values in their axes, because a
    compiler, fused kernel or chunked loss may be the fault. Among equals, timed layouts come first, the least complex
    first; then layouts that were not tried, those with the least memory first.
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
    errors = [abs(value - reference) / max(abs(reference), 1e-12) for reference, value in pairs]
    return max((error if math.isfinite(error) else math.inf for error in errors), default=math.inf)
