"""Describes the token files of a training at its beginning, and compares them when it resumes."""

import dataclasses
import hashlib
import itertools
import random
from bisect import bisect_right
from pathlib import Path

from platform.common.errors import InputError
from platform.common.output import print_line
from trainers.data import ParquetTokens
from trainers.data.index import read_index
from trainers.records.data_content import NUM_BLOCKS, ContentFile, DataContent

_BLOCK_BYTES = 2**16


def content_of(source: ParquetTokens, *, verify: bool) -> DataContent:
    """Returns the content of the files of `source`, from their sizes, times and some blocks.

    With `verify`, all bytes are read and compared with the hashes of the folder's index if it has them.

    Raises:
        InputError: a file differs from its index.
        OSError: a file cannot be read.
    """
    index = read_index(source.path) if source.path.is_dir() else None
    indexed = {file.name: file for file in index.files} if index else {}
    files: list[ContentFile] = []
    for path in source.paths:
        stat = path.stat()
        expected = indexed.get(path.name)
        sha256 = expected.sha256 if expected else ""
        if expected and expected.size_bytes not in (0, stat.st_size):
            raise _changed(path, f"has {stat.st_size:,} bytes in place of {expected.size_bytes:,}")
        if verify:
            read_sha256 = file_sha256(path)
            if sha256 and read_sha256 != sha256:
                raise _changed(path, "holds other bytes")
            sha256 = read_sha256
        files.append(ContentFile(name=path.name, size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns, sha256=sha256))
    return DataContent(
        tokens=source.num_tokens,
        vocab_size=index.vocab_size if index else source.highest_id + 1,
        end_of_document=index.end_of_document if index else None,
        files=tuple(files),
        block_sha256=_block_sha256(source.paths, [file.size_bytes for file in files]),
    )


def checked_content(source: ParquetTokens, before: DataContent | None, *, verify: bool) -> DataContent:
    """Returns the content of the files of `source`, checked against their content `before` (None for a new training).

    Files written since then are read completely if their hashes are known; otherwise a remark is printed.

    Raises:
        InputError: the content differs, or `verify` is set for files without known hashes.
        OSError: a file cannot be read.
    """
    if before is None:
        return content_of(source, verify=verify)
    now = content_of(source, verify=verify)
    written_since = not before.has_times_of(now)
    if not any(before.differences(now)) and written_since and before.is_hashed and not verify:
        print_line(f"The files in {source.path} were written since the training began: all of them are compared")
        now = content_of(source, verify=True)
    if differences := list(before.differences(now)):
        raise InputError(
            f"{source.path} holds other data than when the training began ({'; '.join(differences)}): bring them back,"
            " or train into another --out"
        )
    if verify and not before.is_hashed:
        raise InputError(
            f"the training began without hashes of the files in {source.path}, which platform.prepare writes, and"
            " --verify-data when it begins: leave --verify-data out"
        )
    if written_since and not before.is_hashed:
        print_line(
            f"The files in {source.path} were written since the training began; {NUM_BLOCKS} blocks of them and their"
            " sizes are the same, and no hashes of the rest are known"
        )
    return dataclasses.replace(now, files=before.files) if not written_since else now


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _block_sha256(paths: list[Path], sizes: list[int]) -> tuple[str, ...]:
    """Returns the hashes of blocks at positions that depend only on the sizes."""
    ends = list(itertools.accumulate(sizes))
    places = random.Random(ends[-1])
    hashes: list[str] = []
    for place in sorted(places.randrange(ends[-1]) for _ in range(NUM_BLOCKS)):
        number = bisect_right(ends, place)
        begin = min(place - (ends[number] - sizes[number]), max(0, sizes[number] - _BLOCK_BYTES))
        with paths[number].open("rb") as file:
            file.seek(begin)
            hashes.append(hashlib.sha256(file.read(_BLOCK_BYTES)).hexdigest())
    return tuple(hashes)


def _changed(path: Path, clause: str) -> InputError:
    return InputError(f"{path} {clause} since platform.prepare wrote it: prepare the folder anew")
