"""Checkpoints in one canonical form, written beside the steps by torch's distributed checkpoint (DCP).

A checkpoint is a folder `step-NUMBER-ATTEMPT` with DCP's files, of which each rank writes its own, and `manifest.json`,
which is written last: without it the folder is none. Tensors have transformers' names and shapes and are fp32, so that
any engine, layout and number of devices goes on from it.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load as read_sharded
from torch.distributed.checkpoint.state_dict_saver import save as write_sharded

from trainers.distributed.state import Counters, StateTensor, TensorPart
from trainers.engines.base import Engine
from trainers.records.journal_lines import sync_folder
from trainers.records.training import FORMAT, Manifest
from trainers.records.training_files import MANIFEST
from trainers.spec.codec import from_json, to_json

_NAME = re.compile(r"step-(\d{8,})-(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A checkpoint that was written, or why it was not."""

    manifest: Manifest
    name: str
    stall_s: float
    background_s: float
    gib: float
    error: str = ""


class CheckpointWriter:
    """Writes checkpoints of one engine, one at a time. Every rank has one, and calls its methods together."""

    def __init__(self, folder: Path, *, keep: int, is_current: Callable[[], bool]) -> None:
        self._folder, self._keep, self._is_current = folder, keep, is_current
        self._group = _gloo()  # the steps' collectives go on beside those of the writing
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._copies: dict[str, list[torch.Tensor]] = {}
        self._running: Future[Written] | None = None
        self._cuda_device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def save(self, engine: Engine, manifest: Manifest) -> Written | None:
        """Copies the engine's state to host memory and begins to write it; returns the result of the previous one, None
        for none.

        Waits if the previous one is still being written.
        """
        began_s = time.perf_counter()
        before = self.finish()
        state = self._copied(engine.training_state())
        stall_s = time.perf_counter() - began_s
        self._running = self._thread.submit(self._write, state, manifest, stall_s)
        return before

    @property
    def is_done(self) -> bool:
        """Whether there is something to `finish` without waiting."""
        return self._running is not None and self._running.done()

    def finish(self) -> Written | None:
        """Waits for the checkpoint that is being written; what came of it, None where there is none."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def _copied(self, state: Mapping[str, StateTensor]) -> dict[str, Any]:
        """Copies of the parts that this rank saves, fp32 in host memory that is used again."""
        copied: dict[str, Any] = {}
        on_cuda = False
        for key, tensor in state.items():
            parts = [part for part in tensor.saved_parts if part.tensor.numel()]
            if key not in self._copies:
                # Pinned memory takes a tenth of the time that pageable memory takes.
                self._copies[key] = [
                    torch.empty(part.tensor.shape, dtype=torch.float32, pin_memory=part.tensor.is_cuda)
                    for part in parts
                ]
            copies = self._copies[key]
            for part, copy in zip(parts, copies, strict=True):
                on_cuda |= part.tensor.is_cuda
                copy.copy_(part.tensor, non_blocking=True)
            laid = zip(parts, copies, strict=True)
            copied[key] = Sharded(tensor.shape, [TensorPart(offsets=part.offsets, tensor=copy) for part, copy in laid])
        if on_cuda:
            torch.cuda.synchronize()
        return copied

    def _write(self, state: dict[str, Any], manifest: Manifest, stall_s: float) -> Written:
        """Runs in the thread, on every rank."""
        if self._cuda_device is not None:  # a new thread has device 0, where DCP would begin a context of this rank
            torch.cuda.set_device(self._cuda_device)
        name = f"step-{manifest.step:08d}-{manifest.attempt}"
        path, began_s, error = self._folder / name, time.perf_counter(), ""
        try:
            write_sharded(state, storage_writer=FileSystemWriter(path), process_group=self._group)
            if dist.get_rank() == 0:
                if not self._is_current():
                    raise RuntimeError("a newer attempt goes on with this training")
                write_manifest(path, manifest)
        except (Exception, CheckpointException) as failure:  # a full disk on any rank; DCP's own is no Exception
            error = _cause(failure)
        errors: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(errors, error, group=self._group)
        error = next(filter(None, errors), "")
        gib = 0.0
        if dist.get_rank() == 0:
            if error:
                shutil.rmtree(path, ignore_errors=True)
            else:
                gib = sum(file.stat().st_size for file in path.iterdir()) / 2**30
                remove_old(self._folder, self._keep)
        return Written(
            manifest=manifest,
            name=name,
            stall_s=stall_s,
            background_s=time.perf_counter() - began_s,
            gib=gib,
            error=error,
        )


class Sharded(torch.Tensor):
    """A tensor of which this rank has some boxes, as DCP saves and loads it. Nothing can be computed with it."""

    parts: Sequence[TensorPart]

    def __new__(cls, shape: Sequence[int], parts: Sequence[TensorPart]) -> "Sharded":
        make: Any = torch.Tensor._make_wrapper_subclass  # pyright: ignore[reportPrivateUsage]
        tensor = make(cls, torch.Size(shape), dtype=torch.float32)
        tensor.parts = parts
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{func} of a tensor that is spread over ranks")

    def __create_write_items__(self, key: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=torch.float32)
        return [
            WriteItem(
                index=MetadataIndex(key, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.size()),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets=torch.Size(part.offsets), sizes=part.tensor.shape) for part in self.parts]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return next(part.tensor for part in self.parts if part.offsets == tuple(index.offset or ()))


def load(engine: Engine, path: Path) -> Manifest:
    """Reads the checkpoint in folder `path` into the engine, each rank its own parts; a collective.

    Raises:
        ValueError: it is of another format, or cannot be read.
    """
    manifest = read_manifest(path)
    state = {key: Sharded(tensor.shape, tensor.parts) for key, tensor in engine.training_state().items()}
    try:
        read_sharded(state, storage_reader=FileSystemReader(path), process_group=_gloo())
    except CheckpointException as failure:
        raise ValueError(f"the checkpoint {path} cannot be read: {_cause(failure)}") from failure
    engine.adopt(
        Counters(
            optimizer_step=manifest.optimizer_step,
            loss_scale=manifest.loss_scale,
            loss_scale_steps=manifest.loss_scale_steps,
        )
    )
    return manifest


def _gloo() -> dist.ProcessGroup:
    """Returns a group of all ranks for the agreements of reading and writing, on the host."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo"))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Makes the folder `path` a checkpoint."""
    part = path / f".{MANIFEST}.part"
    with part.open("w") as file:
        json.dump(to_json(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path / MANIFEST)
    sync_folder(path)
    sync_folder(path.parent)


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of the checkpoint in folder `path`.

    Raises:
        ValueError: it is of another format.
    """
    data = json.loads((path / MANIFEST).read_text())
    if data.get("format") != FORMAT:
        raise ValueError(f"the checkpoint {path} has format {data.get('format')}, this version reads format {FORMAT}")
    return from_json(Manifest, data)


def newest(folder: Path) -> Path | None:
    """Returns the complete checkpoint of the highest step, of several the newest attempt's; None for none."""
    return max(_complete(folder), key=_order, default=None)


def remove_old(folder: Path, keep: int) -> None:
    """Removes all but the newest `keep` complete checkpoints, and what older attempts left unfinished."""
    complete = sorted(_complete(folder), key=_order)
    stay = set(complete[-keep:])
    last = _order(complete[-1]) if complete else (0, 0)
    for path in _folders(folder):
        if path not in stay and _order(path) < last:
            with contextlib.suppress(OSError):  # the marker first: what is half removed is no checkpoint
                (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]


def _complete(folder: Path) -> list[Path]:
    return [path for path in _folders(folder) if (path / MANIFEST).is_file()]


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])


def _cause(error: BaseException) -> str:
    """Returns the first line of the innermost cause of DCP's exception."""
    failures = getattr(error, "failures", None)
    if failures:
        inner: Any = next(iter(failures.values()))
        error = inner[0] if isinstance(inner, tuple) else inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
