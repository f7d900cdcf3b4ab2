"""Opens inputs in their published form: plain or compressed. Checks that text is UTF-8 and JSON is JSON lines."""

import re
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from platform.common.errors import InputError
from platform.common.places import InputPath

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Compression by suffix, as named in pyarrow."""
MAX_DOCUMENT_BYTES = 32 * 2**20
"""Largest document in bytes of its file. A document is held in memory as a whole, as text and as tokens."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_UTF_32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_HEAD_BYTES = 4096


def suffix_of(path: PurePath) -> tuple[str, str]:
    """Returns the lower-case suffix without that of a compression, and the compression; "" for none."""
    suffix = path.suffix.lower()
    compression = COMPRESSIONS.get(suffix, "")
    return (PurePath(path.stem).suffix.lower() if compression else suffix), compression


class Opened:
    """The bytes of a file, decompressed if necessary; several concatenated streams are read as one.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: InputPath, compression: str) -> None:
        self._file: Any = path.open("rb")
        self._stream: Any = self._file
        if compression:
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, mode="r"), compression)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def stored(self) -> int:
        """Bytes of the stored file read so far."""
        return self._file.tell()

    def seek(self, place: int) -> None:
        """Moves to byte `place` of an uncompressed file."""
        self._file.seek(place)

    def read(self, size: int) -> bytes:
        """Returns at most `size` bytes; empty at the end.

        Raises:
            OSError: the file cannot be read, or is cut short or damaged.
        """
        return self._stream.read(size)


def check_text(path: InputPath, compression: str, kind: str) -> None:
    """Checks by its first bytes that a text file is UTF-8, and that JSON has one object per line.

    Raises:
        InputError: the file fails the check.
        OSError: the file cannot be read.
    """
    with Opened(path, compression) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_UTF_16) or (len(head) > 3 and head[1:4:2] == b"\0\0") or (head[:4:2] == b"\0\0"):
        kind = "UTF-32" if head.startswith(_UTF_32) else "UTF-16"
        raise InputError(f"{path} is {kind} text, and UTF-8 is read: iconv -f {kind} -t UTF-8 {path} makes it")
    if kind != "json lines":
        return
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        raise InputError(
            f"{path} is one JSON array: write it as JSON lines, an object a line, as jq -c '.[]' {path} does"
        )
    if re.match(rb"\{\s*\n", text):
        raise InputError(
            f"{path} is pretty-printed JSON, an object over several lines: write an object a line, as jq -c . {path}"
            " does"
        )
