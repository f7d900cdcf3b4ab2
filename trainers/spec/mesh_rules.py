"""Refusals of what tensor and context parallelism cannot do, in one sentence each; without torch."""

from collections.abc import Iterator

from trainers.spec.architectures import architecture_of
from trainers.spec.division import division_refusals
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


def mesh_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields why a model, its kernels or its optimizer cannot be cut as `layout` cuts them, whatever the engine."""
    yield from division_refusals(recipe, layout)
    if layout.tp > 1:
        yield from _of_tensor_parallel(recipe, layout)
    if layout.cp > 1:
        yield from _of_context_parallel(recipe, layout)
    if layout.tp * layout.cp > 1 and layout.compile == "model":
        yield (
            f"a model compiled whole has no collectives between its blocks, got tp {layout.tp} and cp {layout.cp}:"
            " choose compile block or none"
        )


def _of_tensor_parallel(recipe: Recipe, layout: Layout) -> Iterator[str]:
    tp = layout.tp
    if reason := architecture_of(recipe.model.architecture).tensor_parallel_refusal:
        yield f"{reason}, got tp {tp}: choose tp 1"
    if recipe.optimizer == "adafactor":
        yield (
            f"Adafactor factors whole matrices, and over parts of them is another algorithm, got tp {tp}:"
            " choose tp 1 or optimizer adamw"
        )
    if recipe.powersgd_rank:
        yield (
            f"PowerSGD approximates whole matrices, and parts of them by other factors, got tp {tp}:"
            " choose tp 1 or compression none or bf16"
        )


def _of_context_parallel(recipe: Recipe, layout: Layout) -> Iterator[str]:
    if layout.attention == "eager":
        yield (f"eager attention looks at a rank's own keys alone, got cp {layout.cp}: choose attention flex or sdpa")
