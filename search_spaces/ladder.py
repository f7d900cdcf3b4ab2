"""The ladder of a layout: its micro-batches, listed ones and those that go on from them until the batch ends them."""

import functools
from collections.abc import Iterable

from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_LARGEST = 1024
"""Largest micro-batch that is reached by doubling where the accumulation is fixed, so that no batch ends a ladder."""


def doubled(micro_batches: Iterable[int], recipe: Recipe, layout: Layout) -> tuple[int, ...]:
    """Returns the micro-batches and the larger ones up to a rank's whole batch, ascending.

    Each further one is the smallest divisor of a rank's batch that is at least twice the one before it: 1, 2, 4, 8 of
    a batch of 8, and 1, 2, 11, 22 of one of 22. Memory, which ends a ladder too, is not looked at.
    """
    rungs = sorted(micro_batches)
    if recipe.grad_accum:
        while 2 * rungs[-1] <= _LARGEST:
            rungs.append(2 * rungs[-1])
        return tuple(rungs)
    rank_batch, remainder = divmod(recipe.global_batch, layout.data_parallel)
    for divisor in () if remainder else _divisors(rank_batch):
        if divisor >= 2 * rungs[-1]:
            rungs.append(divisor)
    return tuple(rungs)


@functools.cache
def _divisors(number: int) -> tuple[int, ...]:
    """Returns the divisors of `number`, ascending."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))
