"""Token sequences: a seeded, learnable, position-dependent stream, or packed documents of Parquet files.

The contract: a row of a Parquet file is a document; the order of an epoch is a function of (seed, epoch); sample i of
step s has the same tokens for every layout; `sample_indices` says which rank takes which sample in which micro-step; a
place in the data is a `Position`, (epoch, sample). Imports no torch, so that the driver can check a data path.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainers.data.files import TokenFiles
from trainers.data.flags import Flagged
from trainers.data.numbers import Numbers
from trainers.data.order import Position
from trainers.data.parquet import ParquetTokens
from trainers.data.stream import Stream
from trainers.spec.batch import BatchPoint
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED, STREAM
from trainers.text import PATH as INCLUDED_TEXT

__all__ = [
    "INCLUDED_TEXT",
    "ParquetTokens",
    "Position",
    "Source",
    "Stream",
    "held_out",
    "plain_source",
    "sample_indices",
    "source",
    "with_data",
]


class Source(Protocol):
    def sequences(self, step: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Returns samples `indices` of the global batch of `step`, as int64 [len(indices), seq_len + 1]."""
        ...

    def of_batch(self, global_batch: int) -> "Source":
        """Returns the same data in steps of that global batch."""
        ...

    def position_after(self, num_samples: int) -> Position:
        """Returns the position of the sample after the first `num_samples`."""
        ...

    def tokens(self, position: Position, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Returns the samples `indices` after `position`, as int64 [len(indices), seq_len + 1]."""
        ...


def source(recipe: Recipe, *, held_out: int = 0) -> Source:
    """Returns the data of `recipe` without the last `held_out` sequences of files, with flags if the attention mask or
    the loss needs them. Reads only the Parquet files' footers. For a workload returns `Numbers`.

    Raises:
        ValueError: the path has no usable token ids (see `ParquetTokens`).
    """
    if not recipe.has_model:
        return Numbers()
    unflagged = plain_source(recipe, held_out=held_out)
    return Flagged(unflagged, recipe) if recipe.has_flags else unflagged


def plain_source(recipe: Recipe, *, held_out: int = 0) -> Stream | ParquetTokens:
    """Returns the data of `source` without flags."""
    if recipe.data == STREAM:
        return Stream(vocab_size=recipe.model.vocab_size, seq_len=recipe.seq_len, seed=recipe.seed)
    return ParquetTokens(
        INCLUDED_TEXT if recipe.data == INCLUDED else Path(recipe.data),
        vocab_size=recipe.model.vocab_size,
        seq_len=recipe.seq_len,
        global_batch=recipe.global_batch,
        shuffle_seed=recipe.seed if recipe.data_order == "shuffled" else None,
        held_out=held_out,
        with_marks=recipe.trained_tokens == "marked",
    )


def with_data(recipe: Recipe, path: str) -> Recipe:
    """Returns the recipe with the data at `path`; if these mark tokens to train on, only marked tokens have a loss.

    Raises:
        ValueError: the path has no usable token ids.
    """
    recipe = dataclasses.replace(recipe, data=path)
    if path in (STREAM, INCLUDED) or not recipe.has_model or recipe.trained_tokens != "all":
        return recipe
    has_marks = TokenFiles(Path(path)).num_trained is not None
    return dataclasses.replace(recipe, trained_tokens="marked") if has_marks else recipe


def held_out(recipe: Recipe, sequences: int) -> tuple[Source, int]:
    """Returns data that contain the sequences held out by `source`, in the files' order, and the number of the first
    held-out one. For the endless stream these are the sequences of another seed.
    """
    if recipe.data == STREAM:
        return source(dataclasses.replace(recipe, seed=recipe.seed + 1)), 0
    in_order = dataclasses.replace(recipe, data_order="file")
    undivided = plain_source(in_order)
    assert isinstance(undivided, ParquetTokens)
    return source(in_order), undivided.num_sequences - sequences


def sample_indices(batch: BatchPoint, *, data_parallel: int, rank: int, micro_step: int) -> range:
    """Returns the samples of a step's global batch that data-parallel rank `rank` takes in micro-step `micro_step`.

    Raises:
        ValueError: the batch point has no such rank or micro-step.
    """
    if not 0 <= rank < data_parallel:
        raise ValueError(f"rank must lie in [0, {data_parallel}), got {rank}")
    if not 0 <= micro_step < batch.grad_accum:
        raise ValueError(f"micro_step must lie in [0, {batch.grad_accum}), got {micro_step}")
    first = (micro_step * data_parallel + rank) * batch.micro_batch
    return range(first, first + batch.micro_batch)
