"""The seeded stream of tokens, which needs no file."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainers.data.order import Position

_LAG = 3
_REFRESH = 0.1


class Stream:
    """A learnable stream: each token repeats the token three positions before, and one in ten is drawn anew.

    The next token depends on a position, not on the last token. So a model without positions, or with a mask off by
    one, has different gradients from the first step on, which uniform tokens would hide. New tokens are concentrated at
    small ids, so the loss falls within a few steps.
    """

    def __init__(self, *, vocab_size: int, seq_len: int, seed: int) -> None:
        self._vocab_size, self._length, self._seed = vocab_size, seq_len + 1, seed

    def sequences(self, step: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.stack([self._sequence(step, index) for index in indices])

    def of_batch(self, global_batch: int) -> "Stream":
        return self

    def position_after(self, num_samples: int) -> Position:
        return Position(epoch=0, sample=num_samples)

    def number_of(self, position: Position) -> int:
        return position.sample

    def tokens(self, position: Position, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        return self.sequences(0, [position.sample + index for index in indices])

    def _sequence(self, step: int, index: int) -> npt.NDArray[np.int64]:
        rows = -(-self._length // _LAG)
        generator = np.random.Generator(np.random.PCG64([self._seed, step, index]))
        fresh = (generator.random((rows, _LAG)) ** 3 * self._vocab_size).astype(np.int64)
        continues = generator.random((rows, _LAG)) >= _REFRESH
        continues[0] = False
        origin = np.maximum.accumulate(np.where(continues, 0, np.arange(rows)[:, None]), axis=0)
        return np.take_along_axis(fresh, origin, axis=0).reshape(-1)[: self._length]
