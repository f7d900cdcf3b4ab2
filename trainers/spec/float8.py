"""Names the linear layers that compute in FP8, and yields refusals, one sentence each. Imports no torch."""

from collections.abc import Iterator, Mapping

from trainers.spec.architectures import architecture_of
from trainers.spec.layout_axes import CUTTING, LayoutAxes
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

MULTIPLE = 16
"""Sizes of an FP8 product must be multiples of this (`torch._scaled_mm`)."""


def linear_sizes(spec: ModelSpec) -> Mapping[str, int]:
    """Returns the sizes of a block's linear layers by name."""
    return {name: size for kind, _ in spec.blocks for name, size in kind.linear_sizes(spec).items()}


def float8_sentence(recipe: Recipe) -> str:
    """Returns a sentence on which layers compute in FP8 and which in bf16; empty if the recipe has no FP8."""
    if not recipe.float8_scaling:
        return ""
    odd = [f"{name} {size}" for name, size in linear_sizes(recipe.model).items() if size % MULTIPLE]
    of_odd = f", linear layers of {', '.join(odd)} (no multiple of {MULTIPLE})" if odd else ""
    return (
        f"FP8 with {'a scale for each tensor' if recipe.float8_scaling == 'tensorwise' else 'a scale for each row'}:"
        f" products of the blocks' linear layers; bf16: embedding, norms, attention, head{of_odd}."
    )


def float8_refusals(recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
    """Yields the reasons why the linear layers of `recipe` cannot compute in FP8 on `layout` with any engine."""
    model, precision = recipe.model, recipe.compute_precision
    if reason := architecture_of(model.architecture).float8_refusal:
        yield f"{reason}, got {precision}: choose bf16"
    if model.hidden_size % MULTIPLE:
        yield (
            f"FP8 products have sizes that are multiples of {MULTIPLE}, hidden_size of {model.name} is"
            f" {model.hidden_size}: choose bf16"
        )
    if (recipe.seq_len // layout.parts("tokens")) % MULTIPLE:
        yield (
            f"FP8 products of gradients have as many rows as a micro-batch has tokens, which {MULTIPLE} must divide,"
            f" got seq_len {recipe.seq_len} and {layout.in_words(CUTTING['tokens'])}: choose another seq_len, or bf16"
        )
    for degree in layout.above_one(CUTTING["width"]):
        yield (
            "a tensor-parallel rank would scale its part of a tensor by that part's largest value, which is another"
            f" recipe, got {layout.in_words([degree])} with {precision}: choose {degree} 1 or bf16"
        )
    if layout.steps_on_host:
        yield (
            f"FP8 weights in host memory were not compared with the dense model, got offload {layout.offload}:"
            " choose offload none or moments, or bf16"
        )
