"""Whether a model and its sequences divide over tensor- and context-parallel ranks. Without torch."""

from collections.abc import Iterator

from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


def division_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields a sentence with the numbers for each size of `recipe` that the ranks of `layout` do not divide."""
    model, tp, cp = recipe.model, layout.tp, layout.cp
    for count, parts in (
        (model.num_heads, "heads"),
        (model.num_kv_heads, "key/value heads"),
        (model.ffn_size, "columns of the feed-forward block"),
        (model.vocab_size, "words in the vocabulary"),
        (model.hidden_size, "values of a hidden state"),
    ):
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
