"""The manifest of a checkpoint: the training's progress, the files with checksums, and the table of tensors. It is JSON
and contains everything that readers need, so that nothing of a checkpoint is ever unpickled.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from trainers.records.training import LearningRateSchedule

FORMAT = 2
"""Version of checkpoints; raised if an older reader would misread a newer one."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.safetensors")
_CRC32 = re.compile(r"[0-9a-f]{8}")
_MOST_DIMENSIONS = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file of a checkpoint, as it was written.

    Raises:
        ValueError: the name is no plain file name, or a number is impossible.
    """

    name: str
    """Name within the checkpoint's folder."""
    size_bytes: int
    crc32: str
    """Checksum of the whole file, as eight hex digits."""

    def __post_init__(self) -> None:
        if not _PLAIN_NAME.fullmatch(self.name):
            raise ValueError(f"the file name {self.name!r} is none of a checkpoint")
        if self.size_bytes < 0:
            raise ValueError(f"{self.name} has {self.size_bytes} bytes")
        if not _CRC32.fullmatch(self.crc32):
            raise ValueError(f"{self.name} has the checksum {self.crc32!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredChunk:
    """A box of a tensor, stored as a separate tensor in one of the files."""

    file: str
    key: str
    """Its name in the file."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """A tensor, and the chunks that it consists of.

    Raises:
        ValueError: the chunks leave a gap, overlap, or lie outside.
    """

    dtype: Literal["F32"]
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]

    def __post_init__(self) -> None:
        if len(self.shape) > _MOST_DIMENSIONS or min(self.shape, default=1) < 1:
            raise ValueError(f"a tensor has the shape {list(self.shape)}")
        for chunk in self.chunks:
            if not len(chunk.offsets) == len(chunk.sizes) == len(self.shape):
                raise ValueError(f"the chunk {chunk.key} has other dimensions than its tensor")
            if any(
                first < 0 or size < 1 or first + size > length
                for first, size, length in zip(chunk.offsets, chunk.sizes, self.shape, strict=True)
            ):
                raise ValueError(f"the chunk {chunk.key} lies outside its tensor")
        if not _tiles(self.shape, self.chunks):
            raise ValueError("the chunks of a tensor leave a gap or overlap")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The files and tensors of a checkpoint.

    Raises:
        ValueError: a chunk is in no file, or two files have the same name.
    """

    files: tuple[StoredFile, ...]
    tensors: Mapping[str, StoredTensor]
    """The tensors by canonical name."""

    def __post_init__(self) -> None:
        names = {file.name for file in self.files}
        if len(names) != len(self.files):
            raise ValueError("two files have one name")
        for name, tensor in self.tensors.items():
            if unknown := {chunk.file for chunk in tensor.chunks} - names:
                raise ValueError(f"{name} lies in {min(unknown)!r}, which is no file of it")

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The manifest of a checkpoint: the file that is written last; a folder without it is no checkpoint."""

    format: int
    recipe_id: str
    step: int
    """Number of optimizer steps, skipped ones included."""
    tokens: int
    samples: int
    """Number of sequences trained on."""
    epoch: int
    sample: int
    """Position of the next sequence in its epoch."""
    optimizer_step: int
    loss_scale: float | None
    loss_scale_steps: int
    learning_rate: float
    """Learning rate of the last step."""
    lr_schedule: LearningRateSchedule
    train_s: float
    layout: str
    """Label of the layout that wrote it, for people; any layout can load it."""
    attempt: int
    base: str = ""
    """Digest of the frozen weights beside adapters (`trainers.training.base_digest`), which the checkpoint does not
    contain; empty if all weights train.
    """
    contents: Contents = dataclasses.field(default_factory=lambda: Contents(files=(), tensors={}))
    """Filled in by the writer when every rank's file is on disk."""

    def __post_init__(self) -> None:
        counts = ("step", "tokens", "samples", "epoch", "sample", "optimizer_step", "loss_scale_steps", "attempt")
        for name in counts:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


def _tiles(shape: tuple[int, ...], chunks: tuple[StoredChunk, ...]) -> bool:
    """Returns whether the boxes cover the shape, each value exactly once.

    This holds if and only if the signed corners of all boxes add up to the corners of the whole: these sums are the
    differences, along every dimension, of the number of boxes that cover a position.
    """
    corners: Counter[tuple[int, ...]] = Counter()
    _add_corners(corners, (0,) * len(shape), shape, -1)
    for chunk in chunks:
        _add_corners(corners, chunk.offsets, chunk.sizes, 1)
    return not any(corners.values())


def _add_corners(
    corners: Counter[tuple[int, ...]], offsets: tuple[int, ...], sizes: tuple[int, ...], sign: int
) -> None:
    ends = [((first, 1), (first + size, -1)) for first, size in zip(offsets, sizes, strict=True)]
    for corner in itertools.product(*ends):
        product = sign
        for _, end_sign in corner:
            product *= end_sign
        corners[tuple(place for place, _ in corner)] += product
