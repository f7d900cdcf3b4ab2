"""What no kernel can run, in one sentence each; without torch."""

from collections.abc import Iterator

from trainers.kernels.float8_rules import float8_refusals
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe


def kernel_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Why the kernels and the checkpointing of `layout` cannot run `recipe`, whatever the engine."""
    if recipe.float8_scaling:
        yield from float8_refusals(recipe, layout)
    if recipe.model.num_layers <= layout.checkpoint_every // 2:
        yield (
            f"checkpointing {layout.checkpointing} of {recipe.model.num_layers} blocks is that of a smaller distance:"
            f" choose {'full' if recipe.model.num_layers == 1 else 'every_2'}"
        )
    if layout.compile == "model" and (layout.attention == "flex" or layout.loss == "chunked"):
        yield (
            f"a model compiled whole has sdpa or eager attention and the plain loss, got {layout.attention} and"
            f" {layout.loss}: choose compile block"
        )
    if layout.compile == "model" and 0 < recipe.model.window < recipe.seq_len:
        yield (
            f"a model compiled whole makes no mask of a sliding window, that of {recipe.model.name} is"
            f" {recipe.model.window} of {recipe.seq_len} tokens: choose compile block or none"
        )
    if layout.activation_budget < 1 and layout.compile == "none":
        yield (
            "an activation budget is for a compiler to keep, got compile none:"
            f" choose compile block or another checkpointing than {layout.checkpointing}"
        )
    if layout.checkpointing == "selective" and layout.attention == "flex" and layout.compile == "none":
        yield (
            "selective checkpointing cannot look into FlexAttention, which is compiled by itself where blocks are not:"
            " choose compile block, another attention or another checkpointing"
        )
