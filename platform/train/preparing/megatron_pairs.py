"""Reads Megatron-LM's pairs: a .bin of consecutive token ids, and an .idx that divides them into sequences and
documents.

The .idx holds b"MMIDIDX\0\0", version u64 = 1, type code u8, number of sequences u64, number of document bounds u64,
then the sequences' lengths int32, their first bytes in the .bin int64, and the documents' bounds int64: document n is
the sequences from bound n up to bound n + 1.
"""

import itertools
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.common.errors import InputError
from trainers.data.footer import Tokens

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
_BLOCK_DOCUMENTS = 2**20
_BLOCK_TOKENS = 2**18
_MAX_DOCUMENT_TOKENS = 2**25
"""Largest number of tokens in a document, which is held in memory as a whole."""

_Array = npt.NDArray[Any]


class Pair:
    """The pair whose .bin is at `path`.

    Raises:
        InputError: a file of the pair is missing, is cut short or has another format.
    """

    def __init__(self, path: Path) -> None:
        index = path.with_suffix(".idx")
        for part in (path, index):
            if not part.is_file():
                raise InputError(f"a Megatron pair is a .bin and an .idx, and there is no {part}")
        with index.open("rb") as file:
            header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(MAGIC):
            raise InputError(f"{index} is no index of a Megatron pair: it does not begin with MMIDIDX")
        _, version, code, num_sequences, num_bounds = _HEADER.unpack(header)
        if version != 1 or code not in _TYPES:
            raise InputError(
                f"{index} is of version {version} with type code {code}: this reader takes version 1 with a"
                " code of 1 to 8"
            )
        self._type = np.dtype(_TYPES[code]).newbyteorder("<")
        if self._type.kind == "f":
            raise InputError(f"{index} says that the pair holds {self._type.name}: token ids are integers")
        needed, size = _HEADER.size + 12 * num_sequences + 8 * num_bounds, index.stat().st_size
        if size < needed or not num_bounds:
            raise InputError(f"{index} is cut short: it has {size:,} bytes, its header asks for {needed:,}")
        offset = _HEADER.size
        self._lengths = _mapped(index, "<i4", offset, num_sequences)
        self._places = _mapped(index, "<i8", offset + 4 * num_sequences, num_sequences)
        self._documents = _mapped(index, "<i8", offset + 12 * num_sequences, num_bounds)
        if self._documents[0] != 0 or self._documents[-1] != num_sequences:
            raise InputError(f"{index} is damaged: its documents are not all of its {num_sequences:,} sequences")
        self._path, self._index, self._num_sequences = path, index, num_sequences
        self._num_tokens = path.stat().st_size // self._type.itemsize

    @property
    def id_type(self) -> str:
        return self._type.name if self._type.name in ("uint8", "uint16") else "int32"

    def bounds(self, shard_bytes: int) -> tuple[list[int], list[int]]:
        """Returns the documents at which pieces of about `shard_bytes` begin, and the bytes of each piece.

        Raises:
            InputError: the index refers to sequences or tokens that do not exist.
        """
        bounds, begins, total_bytes = [0], [0], 0
        for first, sums in self._token_sums(0, len(self._documents) - 1):
            ends = total_bytes + sums[1:] * self._type.itemsize
            # A piece ends with the document that reaches the next multiple of `shard_bytes`.
            is_last = np.diff(np.concatenate(([total_bytes], ends)) // shard_bytes) > 0
            bounds += (first + 1 + np.flatnonzero(is_last)).tolist()
            begins += ends[is_last].tolist()
            total_bytes = int(ends[-1])
        if bounds[-1] < len(self._documents) - 1:
            bounds.append(len(self._documents) - 1)
            begins.append(total_bytes)
        return bounds, np.diff(begins).tolist()

    def documents(self, begin: int, end: int) -> Generator[Tokens]:
        """Yields the tokens of documents `begin` to `end - 1`, about 260,000 tokens at a time."""
        tokens = np.memmap(self._path, self._type, "r") if self._num_tokens else np.zeros(0, self._type)
        for first, sums in self._token_sums(begin, end):
            cuts = np.flatnonzero(np.diff(sums // _BLOCK_TOKENS, prepend=0)).tolist()
            for low, high in itertools.pairwise([0, *cuts, len(sums) - 1]):
                if low < high:
                    yield self._read(tokens, first + low, first + high, sums[low : high + 1] - sums[low])

    def _read(self, tokens: _Array, begin: int, end: int, sums: _Array) -> Tokens:
        """Returns documents `begin` to `end - 1`; number n among them is `ids[sums[n]:sums[n + 1]]`."""
        sequences = slice(int(self._documents[begin]), int(self._documents[end]))
        lengths = self._lengths[sequences].astype(np.int64)
        firsts = self._places[sequences] // self._type.itemsize
        if np.array_equal(firsts[1:], firsts[:-1] + lengths[:-1]):
            ids = tokens[firsts[0] : firsts[0] + sums[-1]] if len(firsts) else tokens[:0]
        else:
            ids = np.concatenate(
                [tokens[first : first + length] for first, length in zip(firsts, lengths, strict=True)]
            )
        if len(ids) and not 0 <= ids.min() <= ids.max() < 2**31:
            raise InputError(f"{self._path} holds {ids.min()} to {ids.max()}, and token ids lie in 0 to 2^31 - 1")
        return Tokens(ids=ids.astype(self.id_type), document_starts=sums[:-1][np.diff(sums) > 0])

    def _token_sums(self, begin: int, end: int) -> Generator[tuple[int, _Array]]:
        """Yields blocks of documents: the first document's number, and the documents' begins in tokens of the block."""
        for first in range(begin, end, _BLOCK_DOCUMENTS):
            bounds = self._documents[first : min(first + _BLOCK_DOCUMENTS, end) + 1]
            if bounds[0] < 0 or bounds[-1] > self._num_sequences or np.any(np.diff(bounds) < 0):
                raise InputError(f"{self._index} is damaged: its documents' bounds do not ascend")
            sequences = slice(int(bounds[0]), int(bounds[-1]))
            lengths, places = self._lengths[sequences].astype(np.int64), self._places[sequences]
            last_bytes = places + lengths * self._type.itemsize
            if np.any(lengths < 0) or np.any(places < 0) or np.any(places % self._type.itemsize):
                raise InputError(f"{self._index} is damaged: a sequence's length or place is impossible")
            if len(places) and int(last_bytes.max()) > self._num_tokens * self._type.itemsize:
                raise InputError(
                    f"{self._path} is cut short: it has {self._num_tokens:,} tokens, {self._index.name} asks for"
                    f" {int(last_bytes.max()) // self._type.itemsize:,}"
                )
            sums = np.concatenate(([0], np.cumsum(lengths)))[bounds - bounds[0]]
            if np.diff(sums).max(initial=0) > _MAX_DOCUMENT_TOKENS:
                raise InputError(f"{self._path} has a document of more than {_MAX_DOCUMENT_TOKENS:,} tokens: cut it")
            yield first, sums


def _mapped(path: Path, kind: str, offset: int, length: int) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    return np.memmap(path, kind, "r", offset, (length,)) if length else np.zeros(0, kind)
