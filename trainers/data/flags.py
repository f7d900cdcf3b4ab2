"""Flags tokens of sequences, by which a recipe's attention mask and loss follow the data; without torch.

A flagged token id has `FLAG` added. Under a document mask the first token of each document is flagged, under a prefix
mask every token of the prefix. A flagged token is no label: no earlier token of its document predicts it, or it is part
of a prefix. Where the recipe trains marked tokens alone, those without a mark have `UNTRAINED` added, and are no labels
either: a label is a token below `FLAG`.
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
"""Added to the id of a token that is no label though nothing separates it from those before it."""

_Array = npt.NDArray[np.int64]
_DOCUMENTS, _PREFIXES, _SHARES, _MARKS = 1, 2, 3, 4
"""Purposes that seeds are drawn for, beside the recipe's seed and the sample's number."""


class Flagged:
    """The sequences of another source with flags, which are a function of seed, epoch and sample."""

    def __init__(self, source: Stream | ParquetTokens, recipe: Recipe) -> None:
        self._source, self._recipe = source, recipe
        self._global_batch = recipe.global_batch

    def of_batch(self, global_batch: int) -> "Flagged":
        """Returns the same data in steps of that global batch."""
        other = Flagged(self._source.of_batch(global_batch), self._recipe)
        other._global_batch = global_batch
        return other

    def position_after(self, num_samples: int) -> Position:
        """Returns the position of the sample after the first `num_samples`."""
        return self._source.position_after(num_samples)

    def sequences(self, step: int, indices: Sequence[int]) -> _Array:
        """Returns samples `indices` of the global batch of `step`, as int64 [len(indices), seq_len + 1]."""
        first = step * self._global_batch
        flags = self._flags(self._source.position_after(first), first, indices)
        return self._source.sequences(step, indices) + flags

    def tokens(self, position: Position, indices: Sequence[int]) -> _Array:
        """Returns the samples `indices` after `position`, as int64 [len(indices), seq_len + 1]."""
        flags = self._flags(position, self._source.number_of(position), indices)
        return self._source.tokens(position, indices) + flags

    def _flags(self, position: Position, first: int, indices: Sequence[int]) -> _Array:
        """Returns what is added to the tokens of the samples `indices` after sample `first`, which is at `position`."""
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
        """Returns the starts of documents of geometric length: each token begins one with the same probability, except
        the first, which no flag separates from what came before.
        """
        length = self._recipe.seq_len + 1
        mean = self._recipe.document_tokens or max(1, self._recipe.seq_len // 4)
        starts = _random(length, _DOCUMENTS, self._recipe.seed, sample) < 1 / mean
        starts[0] = False
        return starts

    def _prefix(self, sample: int) -> npt.NDArray[np.bool_]:
        """Returns a prefix of 1 to `seq_len` tokens, each length as likely (arXiv 1910.10683, section 3.2.3)."""
        length = 1 + int(_random(1, _PREFIXES, self._recipe.seed, sample)[0] * self._recipe.seq_len)
        return np.arange(self._recipe.seq_len + 1) < length

    def _drawn_marks(self, sample: int) -> npt.NDArray[np.bool_]:
        """Returns marks on a share of the tokens that is drawn for each sample, each share as likely."""
        (share,) = _random(1, _SHARES, self._recipe.seed, sample)
        return _random(self._recipe.seq_len + 1, _MARKS, self._recipe.seed, sample) < share


def _random(size: int, *key: int) -> npt.NDArray[np.float64]:
    """Returns numbers in [0, 1) that are a function of `key`, from a bit generator's raw output, which NumPy keeps
    stable.
    """
    return (np.random.PCG64(key).random_raw(size) >> np.uint64(11)) / 2.0**53
