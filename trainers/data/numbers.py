"""Sample numbers in place of sequences, for a user's own training, which reads its own data."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainers.data.order import Position


class Numbers:
    """Samples that consist of their number within the step; a `trainers.data.Source`."""

    def sequences(self, step: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.array(indices, dtype=np.int64)[:, None]

    def of_batch(self, global_batch: int) -> "Numbers":
        return self

    def position_after(self, num_samples: int) -> Position:
        raise ValueError("a training of the user's own has data of its own")

    def tokens(self, position: Position, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        raise ValueError("a training of the user's own has data of its own")
