"""Whether a model and its sequences divide over tensor- and context-parallel ranks. Without torch."""

from collections.abc import Iterator

from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.stages import most_stages


def divides(recipe: Recipe, axis: str, degree: int) -> bool:
    """Returns whether `recipe` can be cut by that degree of `axis`, which is tp, cp or pp, with no other beside it."""
    if axis == "tp":
        return not any(count % degree for count, _ in _cut_by_tensors(recipe.model))
    if axis == "cp":
        return degree == 1 or recipe.seq_len % (2 * degree) == 0
    return degree == 1 or degree <= most_stages(recipe.model)


def division_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields a sentence with the numbers for each size of `recipe` that the ranks of `layout` do not divide."""
    model, tp, cp = recipe.model, layout.tp, layout.cp
    for count, parts in _cut_by_tensors(model):
        if count % tp:
            yield f"tp {tp} does not divide the {count} {parts} of {model.name}: choose a tp that does"
    if cp > 1 and recipe.seq_len % (2 * cp):
        yield (
            f"cp {cp} cuts a sequence into {2 * cp} parts, which do not divide its {recipe.seq_len} tokens: choose"
            f" another cp, or a seq_len that is a multiple of {2 * cp}"
        )
    elif recipe.seq_len // cp % tp:
        yield (
            f"tp {tp} cuts the {recipe.seq_len // cp} tokens of a sequence that a rank has, which it does not divide:"
            f" choose another tp, or a seq_len that is a multiple of {cp * tp}"
        )


def _cut_by_tensors(model: ModelSpec) -> tuple[tuple[int, str], ...]:
    """Returns (size, what it counts) of all that tensor parallelism cuts."""
    of_blocks = dict.fromkeys(size for kind, _ in model.blocks for size in kind.divided_sizes(model))
    return (
        *of_blocks,
        (model.vocab_size, "words in the vocabulary"),
        (model.hidden_size, "values of a hidden state"),
    )
