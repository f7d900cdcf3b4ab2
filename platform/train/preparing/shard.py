"""Writes one output file: a worker process reads, encodes and writes it, and renames it when it is complete."""

import dataclasses
import hashlib
import io
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from platform.train.preparing.chats import ChatEncoder, ChatSettings
from platform.train.preparing.documents import Chats, documents
from platform.train.preparing.inputs import Shard
from platform.train.preparing.packing import Packer
from platform.train.preparing.raw_ids import RawType
from platform.train.preparing.skipping import Skipped, note_of
from platform.train.preparing.tokenizer import Encode, Tokenizer
from trainers.data.footer import MARKS, PADDING, Tokens

ROW_GROUP_TOKENS = 2**18
"""Approximate number of tokens that a reader decodes at once."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings:
    """Settings that all shards share."""

    out: Path
    id_type: str
    tokenizer: Tokenizer | None
    """The tokenizer; None if the input holds token ids."""
    text_key: str
    separator: bytes | None
    raw: RawType | None
    """The type of raw token files; None if there are none."""
    skip_bad: int
    """Number of documents that all shards together may skip."""
    chat: ChatSettings | None = None
    """Settings that convert chats to documents; None if lines hold text."""
    last: str = ""
    """Name of the last shard."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """State shared between workers and driver."""

    input_bytes: "Synchronized[int]"
    """Bytes of input processed."""
    tokens: "Synchronized[int]"
    """Number of tokens written."""
    skipped: "Synchronized[int]"
    """Number of documents skipped."""
    stop: Event
    """Set when the run has ended; a worker then abandons its shard."""


class Stopped(Exception):
    """Raised if the run ends before the shard is complete."""


class _Worker:
    """Settings of a worker process, set once by `begin`."""

    settings: ShardSettings
    shared: Shared
    encode: Encode
    chats: Chats | None


def begin(settings: ShardSettings, shared: Shared) -> None:
    """Prepares a worker process, which ends with its driver and ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes already run in parallel
    driver = multiprocessing.parent_process()
    assert driver is not None
    threading.Thread(target=_end_with, args=(driver.sentinel,), daemon=True).start()
    _Worker.settings, _Worker.shared = settings, shared
    _Worker.encode = _no_text if settings.tokenizer is None else settings.tokenizer.encoder()
    _Worker.chats = None
    if settings.chat is not None and settings.tokenizer is not None:
        _Worker.chats = Chats(encoder=ChatEncoder(settings.tokenizer), settings=settings.chat)


def make(shard: Shard) -> str:
    """Writes the file of `shard` and returns its SHA-256.

    Raises:
        InputError: the input is at fault, or the file cannot be written.
        Stopped: the run has ended.
    """
    settings, shared = _Worker.settings, _Worker.shared
    skipped = Skipped(_may_skip)
    with replacing(settings.out / shard.name) as path:
        packer = None
        if settings.chat is not None and settings.chat.pack and settings.tokenizer is not None:
            packer = Packer(settings.chat.pack, settings.tokenizer.pad_id)
        with HashedFile(path) as file, Writer(file, settings.id_type, with_marks=settings.chat is not None) as writer:
            for piece in shard.pieces:
                batches = documents(
                    piece,
                    encode=_Worker.encode,
                    text_key=settings.text_key,
                    separator=settings.separator,
                    raw=settings.raw,
                    skipped=skipped,
                    chats=_Worker.chats,
                )
                for tokens, input_bytes in batches:
                    if shared.stop.is_set():
                        raise Stopped
                    for document in (tokens,) if packer is None or not len(tokens.ids) else packer.add(tokens):
                        writer.add(document)
                    with shared.input_bytes.get_lock():
                        shared.input_bytes.value += input_bytes
                    with shared.tokens.get_lock():
                        shared.tokens.value += len(tokens.ids)
            if packer is not None:
                for document in packer.close(is_last=shard.name == settings.last):
                    writer.add(document)
                writer.padding = packer.padding
        skipped.write(note_of(settings.out / shard.name))
        with path.open("rb") as written:
            os.fsync(written.fileno())  # a renamed file is never written again, so it must survive a power cut
    return file.sha256.hexdigest()


def _may_skip() -> bool:
    """Returns whether one more document may be skipped, and counts it."""
    shared = _Worker.shared
    with shared.skipped.get_lock():
        if shared.skipped.value >= _Worker.settings.skip_bad:
            return False
        shared.skipped.value += 1
    return True


class HashedFile(io.FileIO):
    """A file that hashes the data written to it; it is never read back or changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self.sha256 = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        """Writes all of `data` and returns its length.

        Raises:
            OSError: the disk is full.
        """
        remaining = memoryview(data).cast("B")
        length = len(remaining)
        self.sha256.update(remaining)
        while remaining:
            remaining = remaining[super().write(remaining) :]
        return length


class Writer:
    """A Parquet file with the column `tokens`, one row for each document, and optionally a column of marks."""

    def __init__(self, file: HashedFile, id_type: str, *, with_marks: bool = False) -> None:
        self._id_type, self._with_marks = id_type, with_marks
        columns = {"tokens": id_type, **({MARKS: "uint8"} if with_marks else {})}
        self._schema = pa.schema(
            [(name, pa.list_(pa.from_numpy_dtype(np.dtype(kind)))) for name, kind in columns.items()]
        )
        self._file = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._ids: list[npt.NDArray[Any]] = []
        self._marks: list[npt.NDArray[np.bool_]] = []
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._num_tokens = self._num_trained = 0
        self.padding = 0
        """Number of padding tokens."""

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
            if self._with_marks:
                counts = {MARKS: str(self._num_trained), PADDING: str(self.padding)}
                self._file.add_key_value_metadata(counts)
        self._file.close()

    def add(self, tokens: Tokens) -> None:
        """Appends documents. Every token of documents without marks is trained on."""
        self._ids.append(tokens.ids)
        if self._with_marks:
            marks = np.ones(len(tokens.ids), np.bool_) if tokens.marks is None else tokens.marks
            self._marks.append(marks)
            self._num_trained += int(marks.sum())
        self._lengths.append(np.diff(tokens.document_starts, append=len(tokens.ids)))
        self._num_tokens += len(tokens.ids)
        if self._num_tokens >= ROW_GROUP_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if not self._num_tokens:
            return
        ids = _as_arrow(np.concatenate(self._ids).astype(self._id_type, copy=False))
        ends = np.cumsum(np.concatenate(self._lengths))
        offsets = _as_arrow(np.concatenate(([0], ends)).astype(np.int32))
        lists = [pa.ListArray.from_arrays(offsets, ids)]
        if self._with_marks:
            marks = _as_arrow(np.concatenate(self._marks).astype(np.uint8))
            lists.append(pa.ListArray.from_arrays(offsets, marks))
        self._file.write_table(pa.table(lists, schema=self._schema), row_group_size=len(lists[0]))
        self._ids, self._marks, self._lengths, self._num_tokens = [], [], [], 0


def _as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    # `pa.array` would import pandas to infer the type.
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _no_text(_: object) -> list[npt.NDArray[Any]]:
    raise InputError("the input holds token ids: there is no text to encode")


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # a killed driver cannot assign further shards
