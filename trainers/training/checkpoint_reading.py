"""Reads checkpoints: each rank checks its part of the files, then reads the parts of tensors that it holds. Files are
in safetensors' format, located by the manifest, so nothing is unpickled.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from trainers.distributed.state import Counters, TensorPart, that_train
from trainers.engines.stepper import HasTrainingState
from trainers.records.checkpoint_manifest import Contents, Manifest, StoredChunk
from trainers.records.checkpoints import Damage, candidates, damage, newest_whole, read_manifest, set_aside
from trainers.training.base_digest import base_digest

Gather = Callable[[Any], list[Any]]
"""Returns every rank's value on every rank."""


def agree_on_newest(folder: Path, gather: Gather) -> tuple[Path | None, list[Damage]]:
    """Returns the newest undamaged checkpoint in `folder` (None if there is no checkpoint), and newer damaged ones,
    which it sets aside. A collective with the same result on every rank.

    Raises:
        ValueError: all checkpoints are damaged, or ranks see different files.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()

    def look(path: Path) -> Damage | None:
        by_rank = gather(damage(path, part=rank, num_parts=num_ranks))
        finder = next((number for number, damaged in enumerate(by_rank) if damaged is not None), 0)
        first = by_rank[finder]
        if first is None or finder == 0:
            return first
        # A node may see a shared folder late or wrongly, so rank 0 checks too before a checkpoint is given up.
        if gather(rank == 0 and damage(path, part=finder, num_parts=num_ranks) is None)[0]:
            raise ValueError(f"rank {finder} finds that {first.reason}, and rank 0 that nothing is wrong: start again")
        return first

    paths: list[Path] = gather(candidates(folder))[0]  # rank 0 decides, because other nodes may see the folder late
    start, damages = newest_whole(folder, look, paths)
    if rank == 0:
        for damaged in damages:
            set_aside(damaged.path)
    return start, damages


def load(engine: HasTrainingState, path: Path) -> Manifest:
    """Reads the checkpoint in folder `path` into the engine, each rank its own parts; a collective. Frozen weights must
    be loaded before.

    Raises:
        ValueError: it has another format or model, its adapters belong to other weights, or it cannot be read.
    """
    manifest, state = read_manifest(path), engine.training_state()
    check_base(manifest, path, base_digest(state))
    with TensorReader(path, manifest.contents) as reader:
        for key, tensor in that_train(state).items():
            reader.read(key, tensor.shape, tensor.parts)
    engine.adopt(
        Counters(
            optimizer_step=manifest.optimizer_step,
            loss_scale=manifest.loss_scale,
            loss_scale_steps=manifest.loss_scale_steps,
        )
    )
    return manifest


def check_base(manifest: Manifest, path: Path, digest: str) -> None:
    """Checks that the checkpoint's adapters were trained beside the weights with this digest.

    Raises:
        ValueError: they differ.
    """
    if manifest.base != digest:
        raise ValueError(
            f"the adapters of {path} were trained beside weights of digest {manifest.base or 'none'}, got"
            f" {digest or 'none'}: bring back the folder that the training started from, or the kind of device that"
            " drew its weights"
        )


class TensorReader(contextlib.AbstractContextManager["TensorReader"]):
    """Reads parts of a checkpoint's tensors, and only the needed bytes of each file."""

    def __init__(self, folder: Path, contents: Contents) -> None:
        self._folder, self._tensors = folder, contents.tensors
        self._opened: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.clear()
        self._stack.close()

    def read(self, key: str, shape: Sequence[int], parts: Sequence[TensorPart]) -> None:
        """Fills the parts of a tensor.

        Raises:
            ValueError: the checkpoint lacks a tensor of that name and shape, or cannot be read.
        """
        stored = self._tensors.get(key)
        if stored is None or stored.shape != tuple(shape):
            has = "no such tensor" if stored is None else f"the shape {list(stored.shape)}"
            raise ValueError(f"the checkpoint {self._folder} is of another model: {key} {list(shape)} has {has} there")
        for part in parts:
            for chunk in stored.chunks:
                self._read(chunk, part)

    def tensor(self, key: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns a whole tensor.

        Raises:
            ValueError: as for `read`.
        """
        tensor = torch.empty(shape, dtype=torch.float32)
        self.read(key, shape, [TensorPart(offsets=(0,) * len(shape), tensor=tensor)])
        return tensor

    def _read(self, chunk: StoredChunk, part: TensorPart) -> None:
        """Copies the intersection of the chunk and the part."""
        sizes = tuple(part.tensor.shape)
        firsts = [max(pair) for pair in zip(chunk.offsets, part.offsets, strict=True)]
        lasts = [
            min(chunk_first + chunk_size, part_first + part_size)
            for chunk_first, chunk_size, part_first, part_size in zip(
                chunk.offsets, chunk.sizes, part.offsets, sizes, strict=True
            )
        ]
        if any(first >= last for first, last in zip(firsts, lasts, strict=True)):
            return
        values = self._values(chunk, _box(firsts, lasts, chunk.offsets))
        part.tensor[_box(firsts, lasts, part.offsets)].copy_(values)

    def _values(self, chunk: StoredChunk, box: tuple[slice, ...]) -> torch.Tensor:
        path = self._folder / chunk.file
        try:
            if chunk.file not in self._opened:
                self._opened[chunk.file] = self._stack.enter_context(safe_open(path, framework="pt"))
            stored = self._opened[chunk.file].get_slice(chunk.key)
            if stored.get_dtype() != "F32" or tuple(stored.get_shape()) != chunk.sizes:
                raise ValueError(f"{path} has another tensor at {chunk.key} than the manifest says")
            return stored[box] if box else self._opened[chunk.file].get_tensor(chunk.key)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path} cannot be read ({error})") from error


def _box(firsts: Sequence[int], lasts: Sequence[int], offsets: Sequence[int]) -> tuple[slice, ...]:
    """Returns a box as slices of a tensor that begins at `offsets`."""
    return tuple(
        slice(first - offset, last - offset) for first, last, offset in zip(firsts, lasts, offsets, strict=True)
    )
