"""Refusals for models with experts, and for options that need experts, one sentence each."""

from collections.abc import Iterator

from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CUTTING
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

CHECKPOINTED_BLOCKS = ("full", "every_2", "every_4")
"""Values of `checkpointing` that recompute whole blocks."""
MULTIPLE = 8
"""Sizes of a grouped product must be multiples of this, because its rows begin at multiples of 16 bytes."""


def has_grouped_sizes(model: ModelSpec) -> bool:
    return not model.hidden_size % MULTIPLE and not model.ffn_size % MULTIPLE


def _sizes_in_words(model: ModelSpec) -> str:
    return (
        f"grouped products have sizes that are multiples of {MULTIPLE}, hidden_size of {model.name} is"
        f" {model.hidden_size} and the width of an expert {model.ffn_size}"
    )


def expert_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why the experts of `recipe` cannot run on `layout` with any engine."""
    model = recipe.model
    if not model.num_experts:
        if layout.experts != "loop":
            yield f"experts {layout.experts} needs a model with experts, {model.name} has none: choose experts loop"
        return
    yield from _shared_out_refusals(recipe, layout)
    if layout.experts == "grouped":
        yield from _grouped_refusals(recipe, layout)
    elif layout.compile != "none":
        yield (
            f"experts loop reads each expert's token count on the host and cannot be compiled, got compile"
            f" {layout.compile}: choose compile none or experts grouped"
        )
    if layout.compile == "model":
        yield "experts were tried with compiled blocks and without, got compile model: choose compile block or none"
    if recipe.powersgd_rank:
        yield (
            "PowerSGD would factor the gradients of all experts of a block as one matrix, got compression"
            f" {recipe.compression}: choose bf16 or none"
        )
    if recipe.balance_loss == "aux" and layout.above_one(CUTTING["depth"]):
        yield (
            "a pipeline's first backward pass begins before its last micro-batch has chosen experts, which the balance"
            f" loss counts, got {layout.in_words(layout.above_one(CUTTING['depth']))}: choose balance_loss bias or pp 1"
        )
    if recipe.balance_loss == "bias" and recipe.compute_precision == "fp16":
        yield (
            "biases that balance routers move in steps that fp16's loss scale leaves out, got balance_loss bias and"
            " compute_precision fp16: choose bf16 or balance_loss aux"
        )
    cut = layout.in_words(layout.above_one(CUTTING["tokens"]))
    if recipe.routing == "balanced" and cut:
        yield (
            "forced balance is by a token's place in its sequence, of which a rank has a part alone, got"
            f" {cut}: choose cp 1 or routing learned"
        )


def _shared_out_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why expert-parallel ranks cannot share out the experts of a block."""
    if not (shared := layout.in_words(layout.above_one(CUTTING["experts"]))):
        return
    if not has_grouped_sizes(recipe.model):
        yield f"{_sizes_in_words(recipe.model)}, got {shared}: set it to 1"
    if layout.experts != "grouped":
        yield (
            f"a rank multiplies the rows that other ranks sent it all at once, got {shared} and experts"
            f" {layout.experts}: choose experts grouped"
        )
    if layout.checkpointing == "selective" and recipe.model.shared_ffn_size:
        yield (
            "selective checkpointing cannot match the recomputed operations of a shared expert beside experts that"
            f" ranks share out, got {shared}: choose checkpointing none or full"
        )
    if layout.compile != "none" and layout.checkpointing not in ("none", *CHECKPOINTED_BLOCKS):
        yield (
            f"ranks exchange rows between the compiled parts of a block, of which nothing is kept apart, got {shared},"
            f" compile {layout.compile} and checkpointing {layout.checkpointing}: choose none or full, or compile none"
        )


def _grouped_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    model = recipe.model
    if not has_grouped_sizes(model):
        yield f"{_sizes_in_words(model)}: choose experts loop"
    is_compiled = layout.compile != "none" and layout.parts("experts") == 1
    if is_compiled and recipe.activation_precision != "bf16":
        yield (
            f"torch compiles grouped products in bf16 alone, got compile {layout.compile} and"
            f" {recipe.compute_precision}: choose compile none or compute_precision bf16"
        )
