"""Packs documents of Parquet files to the sequence length, and reads ahead in a thread."""

import concurrent.futures
import copy
import functools
from collections import OrderedDict
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainers.data.files import TokenFiles
from trainers.data.footer import Tokens
from trainers.data.order import WINDOW_CHUNKS, EpochOrder, Position, SampleWindow

CHUNK_TOKENS = 2**20
"""Approximate number of tokens read at once; it is part of a shuffled order's definition."""


_Array = npt.NDArray[np.int64]


class ParquetTokens:
    """Token ids of a Parquet file, or of all `*.parquet` files of a folder in order of name.

    The column is called `tokens` or `input_ids`. It holds lists of integers, a row per document, or integers, one
    document per file. Documents follow each other without padding; sequence n holds the tokens from n * seq_len on and
    shares its last one with the next. Left-over tokens at the end and the last `held_out` sequences belong to no epoch.
    An epoch takes each sequence once, in file order, or shuffled by (`shuffle_seed`, epoch) if a seed is given. A
    thread reads files when their samples are needed, and the next window of `WINDOW_CHUNKS` chunks ahead.

    Raises:
        ValueError: there is nothing to read, no such column, ids outside the vocabulary, too few tokens for one
            sequence, no marks although `with_marks` is true, or documents packed for another length.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_size: int,
        seq_len: int,
        global_batch: int,
        shuffle_seed: int | None = None,
        held_out: int = 0,
        with_marks: bool = False,
    ) -> None:
        self._files = TokenFiles(path, with_marks=with_marks)
        self.path, self.paths = path, self._files.paths
        self.num_tokens = self._files.num_tokens
        self._seq_len, self._global_batch, self._shuffle_seed = seq_len, global_batch, shuffle_seed
        self.num_sequences = (self._files.num_tokens - 1) // seq_len - held_out
        """Number of sequences in an epoch."""
        if self.num_sequences < 1:
            held_out_text = f" beside {held_out} that are held out" if held_out else ""
            raise ValueError(
                f"{path} holds {self._files.num_tokens} tokens, one sequence takes {seq_len + 1}{held_out_text}"
            )
        if self._files.sequence_tokens not in (0, seq_len):
            raise ValueError(
                f"{path} was packed for sequences of {self._files.sequence_tokens} tokens, got seq_len {seq_len}: give"
                f" --set seq_len={self._files.sequence_tokens}, or prepare it with --pack {seq_len}"
            )
        low, high = self._files.id_range
        self.highest_id = high
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"token ids in {path} run from {low} to {high}, the model's vocabulary from 0 to {vocab_size - 1}"
            )
        self._chunk_sequences = max(1, CHUNK_TOKENS // seq_len)
        self._chunks: OrderedDict[int, concurrent.futures.Future[Tokens]] = OrderedDict()
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "tokens")  # starts its thread at the first task
        self._order = functools.lru_cache(maxsize=3)(self._new_order)
        self._epoch_start = functools.lru_cache(maxsize=2)(self._begin)

    def of_batch(self, global_batch: int) -> "ParquetTokens":
        """Returns the same data in steps of that global batch; both share one reader."""
        other = copy.copy(self)
        other._global_batch = global_batch
        return other

    def position(self, step: int) -> Position:
        return self.position_after(step * self._global_batch)

    def position_after(self, num_samples: int) -> Position:
        epoch, sample = divmod(num_samples, self.num_sequences)
        return Position(epoch=epoch, sample=sample)

    def number_of(self, position: Position) -> int:
        """Returns the number of samples before `position`, over all epochs."""
        return position.epoch * self.num_sequences + position.sample

    def sequences(self, step: int, indices: Sequence[int]) -> _Array:
        return self.tokens(self.position(step), indices)

    def tokens(self, position: Position, indices: Sequence[int]) -> _Array:
        """Returns the samples `indices` after `position`, as int64 [len(indices), seq_len + 1]; the next epoch follows
        an epoch's last sample.

        Raises:
            ValueError: a file differs from its footer or the index.
        """
        rows = np.empty((len(indices), self._seq_len + 1), np.int64)
        for row, (chunk, place) in enumerate(self._located(position, indices)):
            rows[row] = chunk.ids[place : place + self._seq_len + 1]
        return rows

    def segment_ids(self, position: Position, indices: Sequence[int]) -> _Array:
        """Returns for each token of `tokens` the number of its document in its sample, from 0."""
        starts = np.zeros((len(indices), self._seq_len + 1), np.int64)
        for row, (chunk, place) in enumerate(self._located(position, indices)):
            low, high = np.searchsorted(chunk.document_starts, (place + 1, place + self._seq_len + 1))
            starts[row, chunk.document_starts[low:high] - place] = 1
        return np.cumsum(starts, axis=1)

    def marks(self, position: Position, indices: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Returns whether each token of `tokens` is to be trained on; needs `with_marks`."""
        rows = np.empty((len(indices), self._seq_len + 1), np.bool_)
        for row, (chunk, place) in enumerate(self._located(position, indices)):
            assert chunk.marks is not None
            rows[row] = chunk.marks[place : place + self._seq_len + 1]
        return rows

    @property
    def num_trained(self) -> int | None:
        """Number of the files' tokens marked to be trained on; None without marks."""
        return self._files.num_trained

    def _located(self, position: Position, indices: Sequence[int]) -> Generator[tuple[Tokens, int]]:
        """Yields, for each sample, the chunk that contains it and its index there."""
        first = position.epoch * self.num_sequences + position.sample
        for index in indices:
            epoch, sample = divmod(first + index, self.num_sequences)
            order = self._order(epoch)
            window = self._epoch_start(epoch, order.window_of(sample))
            chunk, within = divmod(int(window.sequences[sample - window.first_sample]), self._chunk_sequences)
            yield self._chunk(chunk).result(), within * self._seq_len

    def _new_order(self, epoch: int) -> EpochOrder:
        return EpochOrder(
            num_sequences=self.num_sequences,
            chunk_sequences=self._chunk_sequences,
            shuffle_seed=self._shuffle_seed,
            epoch=epoch,
        )

    def _begin(self, epoch: int, number: int) -> SampleWindow:
        """Returns the window; starts to read its chunks and then the next window's."""
        order = self._order(epoch)
        window = order.window(number)
        following = self._order(epoch + 1).chunks(0) if number + 1 == order.num_windows else order.chunks(number + 1)
        for chunk in (*window.chunks, *following):
            self._chunk(chunk)
        return window

    def _chunk(self, number: int) -> concurrent.futures.Future[Tokens]:
        if number not in self._chunks:
            self._chunks[number] = self._reader.submit(self._read, number)
            if len(self._chunks) > 3 * WINDOW_CHUNKS:  # a batch may span two windows, and a third is read ahead
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(number)
        return self._chunks[number]

    def _read(self, chunk: int) -> Tokens:
        first = chunk * self._chunk_sequences
        last = min(first + self._chunk_sequences, self.num_sequences)
        return self._files.read(first * self._seq_len, last * self._seq_len + 1)
