"""Sizes of a model and its sequences that degrees divide. Imports no torch."""

import functools

from trainers.spec.recipe import Recipe

_PIECE_TOKENS = 8192
"""Tokens per context-parallel rank above which a space adds larger context-parallel degrees to its own."""


@functools.lru_cache  # called for every layout of a space
def widths(recipe: Recipe) -> tuple[tuple[int, str], ...]:
    """Returns (size, name) of each quantity that tensor parallelism cuts."""
    model = recipe.model
    return (
        *dict.fromkeys(size for kind, _ in model.blocks for size in kind.divided_sizes(model)),
        (model.vocab_size, "words in the vocabulary"),
        (model.hidden_size, "values of a hidden state"),
    )


def experts_of_block(recipe: Recipe) -> tuple[tuple[int, str], ...]:
    """Returns (size, name) of the experts that expert parallelism shares out; empty for a model without experts."""
    return ((recipe.model.num_experts, "experts of a block"),) if recipe.model.num_experts else ()


def most_stages(recipe: Recipe) -> int:
    """Returns the largest number of pipeline stages: one per block, one for the embedding alone and one for the head
    alone.

    Llama 3 405B has 126 blocks for the same reason, which make 128 stages (arXiv 2407.21783).
    """
    return recipe.model.num_layers + 2


def long_pieces(recipe: Recipe) -> int:
    """Returns the largest number of ranks of which each still has `_PIECE_TOKENS` tokens of a sequence."""
    return recipe.seq_len // _PIECE_TOKENS
