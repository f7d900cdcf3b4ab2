"""Reads files of plain token ids, as nanoGPT, llm.c and others write them. The user states the type of the integers."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.common.errors import InputError
from trainers.data.footer import Tokens

_TYPES = ("uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_LLM_C_MAGIC = 20240520
"""First of the 256 int32 in the header that llm.c writes."""
_HEADER_BYTES = 1024
ROW_TOKENS = 2**18
"""Tokens in a row if documents are unknown, and tokens read at once."""
_MAX_DOCUMENT_TOKENS = 2**25


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RawType:
    """A type such as "uint16", or "uint16:50256" with the id that ends each document."""

    dtype: str
    end_id: int | None

    @classmethod
    def read(cls, text: str) -> "RawType":
        """Returns the type that `text` states.

        Raises:
            InputError: `text` states no such type.
        """
        name, sign, end = text.partition(":")
        if name not in _TYPES or (sign and not end.isdecimal()):
            raise InputError(
                f"--raw-ids states the integers' type, one of {', '.join(_TYPES)}, and behind a colon the id that ends"
                f" a document, as in uint16:50256, got {text!r}"
            )
        return cls(dtype=name, end_id=int(end) if sign else None)

    @property
    def id_type(self) -> str:
        return self.dtype if self.dtype in ("uint8", "uint16") else "int32"


def check(path: Path, raw: RawType) -> None:
    """Checks that the file holds whole integers of the type.

    Raises:
        InputError: its size does not fit.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size - _begin(path)
    if size % np.dtype(raw.dtype).itemsize:
        raise InputError(f"{path} has {size:,} bytes of ids, which are no whole number of {raw.dtype}: --raw-ids")


def documents(path: Path, raw: RawType) -> Iterator[Tokens]:
    """Yields the documents in blocks; without an end id, rows of `ROW_TOKENS`.

    Raises:
        InputError: an id is negative or too large, or a document is too long.
        OSError: the file cannot be read.
    """
    unfinished: npt.NDArray[Any] = np.zeros(0, raw.dtype)
    with path.open("rb") as file:
        file.seek(_begin(path))
        while len(block := np.fromfile(file, np.dtype(raw.dtype).newbyteorder("<"), ROW_TOKENS)):
            if not 0 <= int(block.min()) <= int(block.max()) < 2**31:
                raise InputError(
                    f"{path} holds {block.min()} to {block.max()} as {raw.dtype}: no token ids, another --raw-ids"
                )
            if raw.end_id is None:
                yield Tokens(ids=block.astype(raw.id_type), document_starts=np.zeros(1, np.int64))
                continue
            unfinished = np.concatenate((unfinished, block))
            ends = np.flatnonzero(unfinished == raw.end_id) + 1
            if len(ends):
                yield Tokens(
                    ids=unfinished[: ends[-1]].astype(raw.id_type),
                    document_starts=np.concatenate(([0], ends[:-1])).astype(np.int64),
                )
                unfinished = unfinished[ends[-1] :]
            elif len(unfinished) > _MAX_DOCUMENT_TOKENS:
                raise InputError(
                    f"{path} has no id {raw.end_id} in {len(unfinished):,} tokens: --raw-ids {raw.dtype}:END"
                )
    if len(unfinished):
        yield Tokens(ids=unfinished.astype(raw.id_type), document_starts=np.zeros(1, np.int64))


def _begin(path: Path) -> int:
    """Returns the position of the first id: after llm.c's header if there is one, else 0."""
    with path.open("rb") as file:
        head = np.fromfile(file, "<i4", 3)
        size = os.fstat(file.fileno()).st_size
    return _HEADER_BYTES if len(head) == 3 and head[0] == _LLM_C_MAGIC and size >= _HEADER_BYTES else 0
