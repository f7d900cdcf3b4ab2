"""Refusals of adapters (LoRA) beside a frozen model, one sentence each."""

from collections.abc import Iterator

from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CUTTING
from trainers.spec.recipe import Recipe

_PRECISIONS = ("fp32", "tf32", "bf16")


def adapter_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why the adapters of `recipe` cannot train on `layout` with any engine."""
    if not recipe.adapter_rank:
        return
    stated = f"got adapter {recipe.adapter}"
    if recipe.compute_precision not in _PRECISIONS:
        yield (
            f"adapters support products in {', '.join(_PRECISIONS)}, {stated} and {recipe.compute_precision}:"
            " choose compute_precision bf16"
        )
    if recipe.state_precision != "fp32":
        yield f"adapters and their states are fp32, {stated} and {recipe.state_precision} states: choose fp32"
    if recipe.balance_loss == "bias":
        yield (
            f"balance_loss bias would change the frozen model, {stated} and balance_loss bias: choose"
            " balance_loss aux or none"
        )
    if recipe.compression != "none":
        yield (
            f"gradients of adapters are already small, {stated} and compression {recipe.compression}: choose"
            " compression none"
        )
    if layout.offload != "none":
        yield (
            f"adapters do not support states in host memory, {stated} and offload {layout.offload}: choose offload none"
        )
    if recipe.is_quantised:
        for degree, value in layout.above_one(CUTTING["width"]).items():
            yield (
                f"weights in NF4 are whole on a rank or cut by rows over shards, {stated} and {degree} {value}: choose"
                f" {degree} 1"
            )
    for degree, value in layout.above_one((*CUTTING["depth"], *CUTTING["experts"])).items():
        yield f"adapters were not tried with {degree} above 1, {stated} and {degree} {value}: choose {degree} 1"
