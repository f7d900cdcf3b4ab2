"""Writes checkpoints in one canonical form, in the background.

A checkpoint is a folder `step-NUMBER-ATTEMPT` with a safetensors file of each rank, and `manifest.json`, which is
written last, after every file was read back; a folder without it is no checkpoint. Tensors have transformers' names and
shapes and are fp32, so any engine, layout and number of devices can continue from it.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from trainers.distributed.state import StateTensor, TensorPart, that_train
from trainers.engines.stepper import HasTrainingState
from trainers.records.checkpoint_manifest import Contents, Manifest, StoredChunk, StoredFile, StoredTensor
from trainers.records.checkpoints import check_written, remove_old, write_manifest
from trainers.training import tensor_file
from trainers.training.checkpoint_room import checkpoint_gib, disk_shortage, memory_shortage


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A checkpoint that was written, or the error."""

    manifest: Manifest
    name: str
    stall_s: float
    background_s: float
    gib: float
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _RankFile:
    """The file of one rank with the shape and chunks of each tensor in it, or the error."""

    file: StoredFile | None = None
    chunks: Mapping[str, tuple[tuple[int, ...], list[StoredChunk]]] = dataclasses.field(
        default_factory=dict[str, tuple[tuple[int, ...], list[StoredChunk]]]
    )
    error: str = ""


class CheckpointWriter:
    """Writes checkpoints of one engine, one at a time. Every rank has one, and all call its methods together."""

    def __init__(self, folder: Path, *, keep: int, is_current: Callable[[], bool]) -> None:
        self._folder, self._keep, self._is_current = folder, keep, is_current
        self._group = _gloo()  # separate from the steps' collectives, which continue meanwhile
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._copies: dict[str, list[torch.Tensor]] = {}
        self._running: Future[Written] | None = None
        self._cuda_device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def save(self, engine: HasTrainingState, manifest: Manifest) -> Written | None:
        """Copies the engine's state to host memory and starts to write it; returns the result of the previous
        checkpoint, None if there was none.

        Waits if the previous one is still being written. If the disk lacks room, nothing is copied and the result is
        available at once.
        """
        began_s = time.perf_counter()
        before = self.finish()
        live = that_train(engine.training_state())
        shortage = disk_shortage(live, self._folder, self._group)
        state = {} if shortage else self._copied(live)
        stall_s = time.perf_counter() - began_s
        if shortage:
            self._running = Future()
            self._running.set_result(
                Written(
                    manifest=manifest,
                    name=name_of(manifest),
                    stall_s=stall_s,
                    background_s=0.0,
                    gib=0.0,
                    error=shortage,
                )
            )
        else:
            self._running = self._thread.submit(self._write, state, manifest, stall_s)
        return before

    def disk_shortage(self, engine: HasTrainingState) -> str:
        """Returns a clause if the disk lacks room for a checkpoint, else "". A collective."""
        return disk_shortage(that_train(engine.training_state()), self._folder, self._group)

    def memory_shortage(self, engine: HasTrainingState) -> str:
        """Returns a clause if a host lacks the memory for the first checkpoint's copies, else "". A collective."""
        return memory_shortage(that_train(engine.training_state()), self._group)

    def gib(self, engine: HasTrainingState) -> float:
        """Returns the size of a checkpoint, all ranks' files together. A collective."""
        return checkpoint_gib(that_train(engine.training_state()), self._group)

    @property
    def is_done(self) -> bool:
        """Whether `finish` would return a result without waiting."""
        return self._running is not None and self._running.done()

    def finish(self) -> Written | None:
        """Waits for the checkpoint in progress and returns its result; None if there is none."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def _copied(self, state: Mapping[str, StateTensor]) -> dict[str, StateTensor]:
        """Returns copies of the parts that this rank saves, in fp32 in reused host memory."""
        copied: dict[str, StateTensor] = {}
        on_cuda = False
        for key, tensor in state.items():
            parts = [part for part in tensor.saved_parts if part.tensor.numel()]
            if key not in self._copies:
                # Copies to pinned memory take a tenth of the time of pageable memory.
                self._copies[key] = [
                    torch.empty(part.tensor.shape, dtype=torch.float32, pin_memory=part.tensor.is_cuda)
                    for part in parts
                ]
            copies = self._copies[key]
            for part, copy in zip(parts, copies, strict=True):
                on_cuda |= part.tensor.is_cuda
                copy.copy_(part.tensor, non_blocking=True)
            laid = zip(parts, copies, strict=True)
            own_parts = tuple(TensorPart(offsets=part.offsets, tensor=copy) for part, copy in laid)
            copied[key] = StateTensor(shape=tensor.shape, parts=own_parts)
        if on_cuda:
            torch.cuda.synchronize()
        return copied

    def _write(self, state: Mapping[str, StateTensor], manifest: Manifest, stall_s: float) -> Written:
        """Writes this rank's file and completes the checkpoint; runs in the thread, on every rank."""
        if self._cuda_device is not None:  # a new thread has device 0, where CUDA would create a context for this rank
            torch.cuda.set_device(self._cuda_device)
        name = name_of(manifest)
        path, began_s = self._folder / name, time.perf_counter()
        own_file = _write_own(path, state)
        is_first = dist.get_rank() == 0
        gathered: list[Any] | None = [None] * dist.get_world_size() if is_first else None
        dist.gather_object(own_file, gathered, group=self._group)
        answer: list[Any] = ["", 0]
        if gathered is not None:
            answer = [*self._complete(path, manifest, gathered)]
        dist.broadcast_object_list(answer, group=self._group)
        error, size_bytes = answer
        return Written(
            manifest=manifest,
            name=name,
            stall_s=stall_s,
            background_s=time.perf_counter() - began_s,
            gib=size_bytes / 2**30,
            error=error,
        )

    def _complete(self, path: Path, manifest: Manifest, files: list[_RankFile]) -> tuple[str, int]:
        """Makes the files of all ranks a checkpoint, on rank 0, and removes old ones; returns the error ("" for none)
        and the bytes. On an error removes the files; the previous checkpoint stays.
        """
        error = next((file.error for file in files if file.error), "")
        size_bytes = 0
        try:
            if not error and not self._is_current():
                error = "a newer attempt goes on with this training"
            if not error:
                contents = _contents(files)
                write_manifest(path, dataclasses.replace(manifest, contents=contents))
                size_bytes = contents.size_bytes
        except Exception as failure:
            error = _cause(failure)
        if error:
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove_old(self._folder, self._keep, path)
        return error, size_bytes


def name_of(manifest: Manifest) -> str:
    return f"step-{manifest.step:08d}-{manifest.attempt}"


def _write_own(path: Path, state: Mapping[str, StateTensor]) -> _RankFile:
    """Writes this rank's file into the folder `path` and reads it back."""
    file_name = f"rank-{dist.get_rank():05d}.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    chunks: dict[str, tuple[tuple[int, ...], list[StoredChunk]]] = {}
    for key, tensor in state.items():
        chunks[key] = tensor.shape, []
        for index, part in enumerate(tensor.parts):
            name = f"{key}[{index}]"
            tensors[name] = part.tensor
            sizes = tuple(part.tensor.shape)
            chunks[key][1].append(StoredChunk(file=file_name, key=name, offsets=part.offsets, sizes=sizes))
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = tensor_file.write(path / file_name, tensors)
        check_written(path, file)
    except Exception as failure:  # a full disk on any rank
        return _RankFile(error=_cause(failure))
    return _RankFile(file=file, chunks=chunks)


def _contents(files: list[_RankFile]) -> Contents:
    """Returns the table of all ranks' files.

    Raises:
        ValueError: together they do not contain each value exactly once.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    chunks: dict[str, list[StoredChunk]] = {}
    for file in files:
        for key, (shape, own_chunks) in file.chunks.items():
            shapes[key] = shape
            chunks.setdefault(key, []).extend(own_chunks)
    return Contents(
        files=tuple(file.file for file in files if file.file is not None),
        tensors={
            key: StoredTensor(dtype="F32", shape=shape, chunks=tuple(chunks[key])) for key, shape in shapes.items()
        },
    )


def _gloo() -> dist.ProcessGroup:
    """Returns a gloo group of all ranks, for agreements while writing."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo"))


def _cause(error: Exception) -> str:
    """Returns the error's first line, or the system's message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
