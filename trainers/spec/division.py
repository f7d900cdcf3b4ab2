"""Sizes of a model and its sequences that degrees divide. Without torch."""

import functools

from trainers.spec.recipe import Recipe

_PIECE_TOKENS = 8192
"""Tokens of a sequence for each context-parallel rank from which on a longer context is worth another one, beyond the
degrees that a space names.
"""


@functools.lru_cache  # asked for every layout of a space
def widths(recipe: Recipe) -> tuple[tuple[int, str], ...]:
    """Returns (size, what it counts) of all that tensor parallelism cuts."""
    model = recipe.model
    return (
        *dict.fromkeys(size for kind, _ in model.blocks for size in kind.divided_sizes(model)),
        (model.vocab_size, "words in the vocabulary"),
        (model.hidden_size, "values of a hidden state"),
    )


def experts_of_block(recipe: Recipe) -> tuple[tuple[int, str], ...]:
    """Returns (size, what it counts) of what expert parallelism shares out; nothing in a model without experts."""
    return ((recipe.model.num_experts, "experts of a block"),) if recipe.model.num_experts else ()


def most_stages(recipe: Recipe) -> int:
    """Returns the number of stages into which the model can be cut at most: a block each, but for the first, which may
    have the embedding alone, and the last with the head.

    So 126 blocks make 128 stages of Llama 3 405B (arXiv 2407.21783).
    """
    return recipe.model.num_layers + 2


def long_pieces(recipe: Recipe) -> int:
    """Returns the number of ranks up to which each has a long piece of a sequence."""
    return recipe.seq_len // _PIECE_TOKENS
