"""The order of an epoch's sequences: the files' order, or shuffled by (seed, epoch).

Shuffling keeps reads local. Sequences are divided into consecutive chunks; an epoch shuffles the chunks, takes
`WINDOW_CHUNKS` at a time as a window, and shuffles the sequences inside the window. So each chunk is read once an
epoch, and at most a window has to be in memory.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

WINDOW_CHUNKS = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Position:
    epoch: int
    sample: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SampleWindow:
    """Consecutive samples of an epoch."""

    first_sample: int
    chunks: tuple[int, ...]
    """The chunks that contain these samples, in reading order."""
    sequences: npt.NDArray[np.int64]
    """Number of each sample's sequence in the files."""


class EpochOrder:
    """The order of one epoch, window by window. With `shuffle_seed` None a sample's number is its sequence's number in
    the files.
    """

    def __init__(self, *, num_sequences: int, chunk_sequences: int, shuffle_seed: int | None, epoch: int) -> None:
        self._num_sequences, self._chunk_sequences = num_sequences, chunk_sequences
        self._shuffle_seed, self._epoch = shuffle_seed, epoch
        num_chunks = -(-num_sequences // chunk_sequences)
        self._chunks = (
            np.arange(num_chunks) if shuffle_seed is None else _permutation(num_chunks, 0, shuffle_seed, epoch)
        )
        sizes = np.minimum(chunk_sequences, num_sequences - self._chunks * chunk_sequences)
        self._first_samples = np.concatenate(([0], np.cumsum(sizes)))[:-1:WINDOW_CHUNKS]

    @property
    def num_windows(self) -> int:
        return len(self._first_samples)

    def window_of(self, sample: int) -> int:
        return int(np.searchsorted(self._first_samples, sample, side="right")) - 1

    def chunks(self, number: int) -> tuple[int, ...]:
        return tuple(self._chunks[number * WINDOW_CHUNKS : (number + 1) * WINDOW_CHUNKS].tolist())

    def window(self, number: int) -> SampleWindow:
        chunks, size = self.chunks(number), self._chunk_sequences
        sequences = np.concatenate(
            [np.arange(chunk * size, min((chunk + 1) * size, self._num_sequences)) for chunk in chunks]
        )
        if self._shuffle_seed is not None:
            sequences = sequences[_permutation(len(sequences), 1, self._shuffle_seed, self._epoch, number)]
        return SampleWindow(
            first_sample=int(self._first_samples[number]),
            chunks=chunks,
            sequences=sequences,
        )


def _permutation(size: int, *key: int) -> npt.NDArray[np.int64]:
    """Returns a permutation of range(size) determined by `key`. Uses a bit generator's raw output, which NumPy keeps
    stable across versions, unlike the output of `Generator`.
    """
    return np.argsort(np.random.PCG64(key).random_raw(size), kind="stable")
