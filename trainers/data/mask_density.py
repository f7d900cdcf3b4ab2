"""Counts the keys that attention computes under a recipe's mask, in the first sequences of its data. Imports no torch.

FLOPs count the keys that queries attend to, so that a mix of long and short documents counts at its real cost. A kernel
that skips blocks visits more keys: all keys of each block from which at least one query of a block attends.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trainers.spec.kernel_rules import BLOCK
from trainers.spec.recipe import Recipe

_SEQUENCES, _TOKENS = 128, 2**20
"""Largest numbers of sequences and of tokens in which keys are counted."""

_Array = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MaskDensity:
    """Keys per query, averaged over queries and over blocks of the model."""

    num_keys: float
    """Keys that mask and sliding windows leave to a query; its own counts half, as in the causal s / 2."""
    visited: float
    """Keys computed by a kernel that skips blocks without any visible key."""
    visited_causally: float
    """The same under a causal mask without sliding windows."""


def keys_per_query(recipe: Recipe) -> float:
    """Returns the number of keys that a query attends to, averaged over a sequence and all blocks of the model."""
    measured = mask_density(recipe)
    return recipe.model.keys_per_query(recipe.seq_len) if measured is None else measured.num_keys


@functools.lru_cache(maxsize=64)
def mask_density(recipe: Recipe) -> MaskDensity | None:
    """Returns the mask's density in up to 128 sequences (shuffled if from a file); None under a causal mask.

    Raises:
        ValueError: the data do not suit the recipe (see `trainers.data.source`).
    """
    if recipe.attention_mask == "causal":
        return None
    from trainers import data  # imports pyarrow, which a causal mask does not need
    from trainers.data.flags import FLAG

    source = data.source(dataclasses.replace(recipe, data_order="shuffled"))
    count = max(1, min(_SEQUENCES, _TOKENS // recipe.seq_len))
    tokens = source.tokens(source.position_after(0), range(count))[:, :-1]
    flags, places = tokens & FLAG > 0, np.arange(recipe.seq_len)
    if recipe.attention_mask == "document":
        first = np.maximum.accumulate(np.where(flags, places, 0), axis=1)
        last = np.broadcast_to(places, first.shape)
    else:
        first = np.zeros_like(tokens)
        last = np.maximum(places, flags.sum(axis=1, keepdims=True) - 1)
    model = recipe.model
    local = model.window_layers / model.num_layers
    windowed = np.maximum(first, places - model.window + 1) if local else first
    causal = np.zeros((1, recipe.seq_len), np.int64)

    def of_blocks(count: Callable[[_Array, _Array], float]) -> float:
        return local * count(windowed, last) + (1 - local) * count(first, last)

    return MaskDensity(
        num_keys=of_blocks(_keys_in_window),
        visited=of_blocks(_visited),
        visited_causally=_visited(causal, places[None]),
    )


def _keys_in_window(first: _Array, last: _Array) -> float:
    return float(np.mean(last - first + 0.5))


def _visited(first: _Array, last: _Array) -> float:
    """Returns the keys of all blocks between the earliest and the latest key of each block of queries."""
    length = first.shape[1]
    starts = np.arange(0, length, BLOCK)
    begins = np.minimum.reduceat(first, starts, axis=1) // BLOCK * BLOCK
    ends = np.minimum((np.maximum.reduceat(last, starts, axis=1) // BLOCK + 1) * BLOCK, length)
    queries = np.diff(starts, append=length)
    return float(np.mean((ends - begins) @ queries) / length)
