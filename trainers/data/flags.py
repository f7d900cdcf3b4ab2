"""Flags tokens of sequences, so that a recipe's attention mask and loss follow the data. Imports no torch.

A flagged token id has `FLAG` added. Under a document mask the first token of each document is flagged, under a prefix
mask every token of the prefix. A flagged token is no label, because no earlier token of its document predicts it, or it
belongs to a prefix. If a recipe trains marked tokens only, unmarked tokens have `UNTRAINED` added and are no labels
either. So a label is a token below `FLAG`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainers.data.order import Position
from trainers.data.parquet import ParquetTokens
from trainers.data.stream import Stream
from trainers.spec.recipe import Recipe

FLAG = 2**40
"""Added to a flagged token id; larger than any token id."""
UNTRAINED = 2 * FLAG
"""Added to the id of an unmarked token, which is no label although the attention mask does not separate it."""

_Array = npt.NDArray[np.int64]
_DOCUMENTS, _PREFIXES, _SHARES, _MARKS = 1, 2, 3, 4
"""Purposes of random draws, which seed them beside the recipe's seed and the sample's number."""


class Flagged:
    """The sequences of another source with flags, which are a function of seed, epoch and sample."""

    def __init__(self, source: Stream | ParquetTokens, recipe: Recipe) -> None:
        self._source, self._recipe = source, recipe
        self._global_batch = recipe.global_batch

    def of_batch(self, global_batch: int) -> "Flagged":
        other = Flagged(self._source.of_batch(global_batch), self._recipe)
        other._global_batch = global_batch
        return other

    def position_after(self, num_samples: int) -> Position:
        return self._source.position_after(num_samples)

    def sequences(self, step: int, indices: Sequence[int]) -> _Array:
        first = step * self._global_batch
        flags = self._flags(self._source.position_after(first), first, indices)
        return self._source.sequences(step, indices) + flags

    def tokens(self, position: Position, indices: Sequence[int]) -> _Array:
        flags = self._flags(position, self._source.number_of(position), indices)
        return self._source.tokens(position, indices) + flags

    def _flags(self, position: Position, first: int, indices: Sequence[int]) -> _Array:
        """Returns the values to add to the tokens of samples `indices` after sample `first`, which is at `position`."""
        flags = np.zeros((len(indices), self._recipe.seq_len + 1), np.int64)
        if self._recipe.attention_mask == "document" and isinstance(self._source, ParquetTokens):
            flags += FLAG * np.diff(self._source.segment_ids(position, indices), axis=1, prepend=0)
        elif self._recipe.attention_mask != "causal":
            draw = self._prefix if self._recipe.attention_mask == "prefix" else self._document_starts
            flags += FLAG * np.stack([draw(first + index) for index in indices])
        if self._recipe.trained_tokens == "marked":
            if isinstance(self._source, ParquetTokens):
                marks = self._source.marks(position, indices)
            else:
                marks = np.stack([self._drawn_marks(first + index) for index in indices])
            flags += UNTRAINED * ~marks
        return flags

    def _document_starts(self, sample: int) -> npt.NDArray[np.bool_]:
        """Returns the starts of documents with geometrically distributed length: each token starts one with the same
        probability, except the first of the sample, which has no flag.
        """
        length = self._recipe.seq_len + 1
        mean = self._recipe.document_tokens or max(1, self._recipe.seq_len // 4)
        starts = _random(length, _DOCUMENTS, self._recipe.seed, sample) < 1 / mean
        starts[0] = False
        return starts

    def _prefix(self, sample: int) -> npt.NDArray[np.bool_]:
        """Returns a prefix of 1 to `seq_len` tokens with uniformly distributed length (arXiv 1910.10683, section
        3.2.3).
        """
        length = 1 + int(_random(1, _PREFIXES, self._recipe.seed, sample)[0] * self._recipe.seq_len)
        return np.arange(self._recipe.seq_len + 1) < length

    def _drawn_marks(self, sample: int) -> npt.NDArray[np.bool_]:
        """Returns marks on a share of the tokens; the share is drawn uniformly for each sample."""
        (share,) = _random(1, _SHARES, self._recipe.seed, sample)
        return _random(self._recipe.seq_len + 1, _MARKS, self._recipe.seed, sample) < share


def _random(size: int, *key: int) -> npt.NDArray[np.float64]:
    """Returns numbers in [0, 1) determined by `key`, from a bit generator's raw output, which NumPy keeps stable."""
    return (np.random.PCG64(key).random_raw(size) >> np.uint64(11)) / 2.0**53
