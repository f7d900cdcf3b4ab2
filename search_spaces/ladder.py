"""The ladder of a layout: its listed micro-batches, and further ones up to the batch's size."""

from collections.abc import Sequence

from search_spaces.degrees import divisors
from trainers.spec.batch import divides
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_LARGEST = 1024
"""Largest micro-batch reached by doubling if the accumulation is fixed, so that no batch size ends the ladder."""


def doubled(micro_batches: Sequence[int], recipe: Recipe, layout: Layout) -> tuple[int, ...]:
    """Returns the micro-batches and larger ones up to a rank's whole batch, ascending. Each further one is the smallest
    divisor of a rank's batch that is at least twice the previous one: 1, 2, 4, 8 for a batch of 8, and 1, 2, 11, 22 for
    22. Memory, which ends a ladder too, is ignored.
    """
    rungs = sorted(micro_batches)
    if recipe.grad_accum:
        while 2 * rungs[-1] <= _LARGEST:
            rungs.append(2 * rungs[-1])
        return tuple(rungs)
    rank_batch, remainder = divmod(recipe.global_batch, layout.data_parallel)
    for divisor in () if remainder else divisors(rank_batch):
        if divisor >= 2 * rungs[-1]:
            rungs.append(divisor)
    return tuple(rungs)


def every(recipe: Recipe, layout: Layout) -> tuple[int, ...]:
    """Returns every micro-batch that divides a rank's batch, ascending; 1 if the ranks do not divide the batch."""
    rank_batch, remainder = divmod(recipe.global_batch, layout.data_parallel)
    return (1,) if remainder else tuple(divisors(rank_batch))


def dividing(micro_batches: Sequence[int], recipe: Recipe, layout: Layout) -> tuple[int, ...]:
    """Returns `micro_batches` if one of them divides the global batch of `recipe` on `layout`; otherwise the divisors
    up to the largest of them, if there are any.
    """
    if recipe.grad_accum or any(divides(recipe, layout, micro_batch) for micro_batch in micro_batches):
        return tuple(micro_batches)
    sequences, remainder = divmod(recipe.global_batch, layout.data_parallel)
    smaller = () if remainder else (size for size in divisors(sequences) if size <= max(micro_batches))
    return tuple(size for size in smaller if divides(recipe, layout, size)) or tuple(micro_batches)
