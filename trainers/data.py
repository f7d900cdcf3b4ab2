"""Token sequences: a seeded, learnable, position-dependent stream, or token ids out of Parquet files.

No torch here, so that the driver can check a data path. Sample i of step s is the same tokens whatever the layout;
`sample_indices` says which rank takes which sample when.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainers.layout import BatchPoint
from trainers.recipe import INCLUDED, STREAM, Recipe

COLUMNS = ("tokens", "input_ids")
"""Names under which token ids are looked for in a Parquet file, in this order."""

INCLUDED_TEXT = Path(__file__).parent / "text" / "alice.parquet"
"""The text that comes with this project, one token a byte."""

MAX_TOKENS = 2**27
"""Tokens read from Parquet at most (0.5 GiB of memory a process); a search takes no more, it begins anew after them."""

_LAG = 3
_REFRESH = 0.1


class Source(Protocol):
    """Where sequences come from."""

    def sequences(self, step: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Samples `indices` of the global batch of `step`, as int64 [len(indices), seq_len + 1]."""
        ...

    def of_batch(self, global_batch: int) -> "Source":
        """The same data in steps of that global batch."""
        ...


def source(recipe: Recipe) -> Source:
    """The data that `recipe` names.

    Raises:
        ValueError: the path holds no usable token ids (see `ParquetTokens`).
    """
    if recipe.data == STREAM:
        return Stream(vocab_size=recipe.model.vocab_size, seq_len=recipe.seq_len, seed=recipe.seed)
    return ParquetTokens(
        INCLUDED_TEXT if recipe.data == INCLUDED else Path(recipe.data),
        vocab_size=recipe.model.vocab_size,
        seq_len=recipe.seq_len,
        global_batch=recipe.global_batch,
    )


def sample_indices(batch: BatchPoint, *, data_parallel: int, rank: int, micro_step: int) -> range:
    """Which samples of the global batch data-parallel rank `rank` takes in micro-step `micro_step` of a step.

    Raises:
        ValueError: a rank or micro-step that the batch point does not have.
    """
    if not 0 <= rank < data_parallel:
        raise ValueError(f"rank must lie in [0, {data_parallel}), got {rank}")
    if not 0 <= micro_step < batch.grad_accum:
        raise ValueError(f"micro_step must lie in [0, {batch.grad_accum}), got {micro_step}")
    first = (micro_step * data_parallel + rank) * batch.micro_batch
    return range(first, first + batch.micro_batch)


class Stream:
    """A stream to learn from: each token repeats the one three places before it, one in ten is drawn afresh.

    What comes next depends on a place, not on a token, so a model without positions, or with a mask off by one, has
    other gradients from the first step on; uniform tokens would hide both. Fresh tokens crowd at small ids, so the loss
    falls within a few steps.
    """

    def __init__(self, *, vocab_size: int, seq_len: int, seed: int) -> None:
        self._vocab_size, self._length, self._seed = vocab_size, seq_len + 1, seed

    def sequences(self, step: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.stack([self._sequence(step, index) for index in indices])

    def of_batch(self, global_batch: int) -> Source:
        return self

    def _sequence(self, step: int, index: int) -> npt.NDArray[np.int64]:
        rows = -(-self._length // _LAG)
        generator = np.random.Generator(np.random.PCG64([self._seed, step, index]))
        fresh = (generator.random((rows, _LAG)) ** 3 * self._vocab_size).astype(np.int64)
        kept = generator.random((rows, _LAG)) >= _REFRESH
        kept[0] = False
        origin = np.maximum.accumulate(np.where(kept, 0, np.arange(rows)[:, None]), axis=0)
        return np.take_along_axis(fresh, origin, axis=0).reshape(-1)[: self._length]


class ParquetTokens:
    """Token ids of a Parquet file, or of all `*.parquet` files of a folder in the order of their names.

    The column is called `tokens` or `input_ids` and holds integers or lists of integers; rows are joined into one
    stream, of which at most `MAX_TOKENS` are read. Samples follow each other in it, sharing one token, and begin anew
    at its end.

    Raises:
        ValueError: nothing to read, no such column, ids outside the vocabulary, or fewer tokens than one sequence.
    """

    def __init__(self, path: Path, *, vocab_size: int, seq_len: int, global_batch: int) -> None:
        self._tokens = _read(path, limit=MAX_TOKENS)
        self._seq_len, self._global_batch = seq_len, global_batch
        self._num_sequences = (len(self._tokens) - 1) // seq_len
        if self._num_sequences < 1:
            raise ValueError(f"{path} holds {len(self._tokens)} tokens, one sequence takes {seq_len + 1}")
        low, high = int(self._tokens.min()), int(self._tokens.max())
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"token ids in {path} run from {low} to {high}, the model's vocabulary from 0 to {vocab_size - 1}"
            )

    def sequences(self, step: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        numbers = (step * self._global_batch + np.asarray(indices, dtype=np.int64)) % self._num_sequences
        places = numbers[:, None] * self._seq_len + np.arange(self._seq_len + 1)
        return self._tokens[places].astype(np.int64)

    def of_batch(self, global_batch: int) -> Source:
        other = copy.copy(self)
        other._global_batch = global_batch
        return other


def _read(path: Path, *, limit: int) -> npt.NDArray[np.int32]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not path.exists():
        raise ValueError(f"there is no {path}: data are a Parquet file or a folder of them")
    if not files:
        raise ValueError(f"{path} holds no .parquet file")
    parts: list[npt.NDArray[np.int32]] = []
    num_tokens = 0
    for file in files:
        try:
            parquet = pq.ParquetFile(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(f"cannot read {file} as Parquet: {error}") from error
        with parquet:
            column = next((name for name in COLUMNS if name in parquet.schema_arrow.names), None)
            if column is None:
                found = ", ".join(parquet.schema_arrow.names)
                raise ValueError(f"{file} has no column {' or '.join(COLUMNS)}; its columns are {found}")
            for batch in parquet.iter_batches(columns=[column], batch_size=4096):
                part = _ids(batch.column(0), where=f"column {column} of {file}")
                parts.append(part[: limit - num_tokens])
                num_tokens += len(parts[-1])
                if num_tokens >= limit:
                    return np.concatenate(parts)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def _ids(column: pa.Array, *, where: str) -> npt.NDArray[np.int32]:
    while (
        pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)
    ):
        column = column.flatten()
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{where} must hold integers or lists of integers, got {column.type}")
    if column.null_count:
        raise ValueError(f"{where} has empty places among its token ids")
    try:
        return column.cast(pa.int32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{where} holds what cannot be a token id: {error}") from error
