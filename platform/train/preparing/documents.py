"""The documents of a piece of a file, as tokens."""

import json
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from platform.common.errors import InputError, one_line
from platform.train.preparing.inputs import MAX_DOCUMENT_BYTES, Piece, separator_in, too_long
from platform.train.preparing.megatron_pairs import Pair
from platform.train.preparing.tokenizer import Encode
from trainers.data.footer import Tokens, group_blocks

_BLOCK_BYTES = 2**20
_BATCH_BYTES = 2**18
"""Amount of text that is encoded at once."""
_BATCH_ROWS = 256

_Text = tuple[str, int]
"""A document and the number of bytes that it takes in its file."""


def documents(piece: Piece, *, encode: Encode, text_key: str, separator: bytes | None) -> Generator[tuple[Tokens, int]]:
    """Yields the piece's documents in order, in batches, each with the bytes it takes in the input.

    Raises:
        InputError: the file changed, or something in it is not what its kind promises.
    """
    path = Path(piece.file.path)
    try:
        match piece.file.kind:
            case "megatron":
                for tokens in Pair(path).documents(piece.begin, piece.end):
                    yield tokens, tokens.ids.nbytes
            case "parquet ids":
                yield from _ids(piece, path)
            case "parquet text":
                yield from _encoded(_rows(piece, path), encode)
            case "json lines":
                yield from _encoded(_lines(piece, path, text_key), encode)
            case "text":
                yield from _encoded(_texts(piece, path, separator), encode)
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or one_line(error)}") from error
    except pa.ArrowException as error:
        raise InputError(f"cannot read {path}: {one_line(error)}") from error
    except ValueError as error:
        raise InputError(one_line(error)) from error


def _encoded(texts: Iterable[_Text], encode: Encode) -> Generator[tuple[Tokens, int]]:
    batch: list[str] = []
    batch_bytes, input_bytes = 0, 0
    for text, size in texts:
        if text:
            batch.append(text)
        batch_bytes += len(text)
        input_bytes += size
        if batch_bytes >= _BATCH_BYTES:
            yield _tokens(encode(batch)), input_bytes
            batch, batch_bytes, input_bytes = [], 0, 0
    if batch or input_bytes:
        yield _tokens(encode(batch)), input_bytes


def _tokens(ids: list[np.ndarray[Any, Any]]) -> Tokens:
    lengths = np.array([len(document_ids) for document_ids in ids], np.int64)
    starts = np.cumsum(lengths) - lengths
    return Tokens(ids=np.concatenate(ids) if ids else np.zeros(0, np.uint8), document_starts=starts[lengths > 0])


def _split(piece: Piece, path: Path, separator: bytes) -> Generator[tuple[int, bytes]]:
    """Yields the parts between separators, each with the byte at which it begins."""
    begin, unfinished = piece.begin, b""
    with path.open("rb") as stream:
        stream.seek(begin)
        remaining_bytes = piece.end - piece.begin
        while remaining_bytes:
            block = stream.read(min(_BLOCK_BYTES, remaining_bytes))
            if not block:
                raise InputError(f"{path} became shorter while it was read")
            remaining_bytes -= len(block)
            *parts, unfinished = (unfinished + block).split(separator)
            for part in parts:
                yield begin, part
                begin += len(part) + len(separator)
            if len(unfinished) > MAX_DOCUMENT_BYTES:
                raise too_long(piece.file, begin)
    yield begin, unfinished


def _texts(piece: Piece, path: Path, separator: bytes | None) -> Generator[_Text]:
    separator = None if separator is None else separator_in(path, separator)
    parts = [(0, path.read_bytes())] if separator is None else _split(piece, path, separator)
    for begin, part in parts:
        try:
            # A byte-order mark may stand before the first document.
            yield part.decode("utf-8" if begin else "utf-8-sig"), len(part) + len(separator or b"")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no UTF-8 text: byte {begin + error.start} is {error.reason}") from error


def _lines(piece: Piece, path: Path, text_key: str) -> Generator[_Text]:
    for begin, line in _split(piece, path, b"\n"):
        if line.strip():
            yield _line_text(line, path, begin, text_key), len(line) + 1
        else:
            yield "", len(line) + 1


def _line_text(line: bytes, path: Path, begin: int, text_key: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_line_of(path, begin)} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{_line_of(path, begin)} is not a JSON object")
    if text_key not in value:
        keys = ", ".join(map(str, value)) or "none"  # type: ignore[reportUnknownArgumentType]
        raise InputError(f'{_line_of(path, begin)} has no key "{text_key}", its keys: {keys}; --text-key names another')
    text = value[text_key]  # type: ignore[reportUnknownVariableType]
    if not isinstance(text, str):
        raise InputError(f'"{text_key}" in {_line_of(path, begin)} must be text, got {json.dumps(text)[:60]}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f'"{text_key}" in {_line_of(path, begin)} holds half of a surrogate pair') from error
    return text


def _line_of(path: Path, begin: int) -> str:
    """Returns the number of the line that begins at byte `begin`, as text; lines are counted only for an error."""
    number, remaining_bytes = 1, begin
    with path.open("rb") as stream:
        while remaining_bytes:
            block = stream.read(min(_BLOCK_BYTES, remaining_bytes))
            number += block.count(b"\n")
            remaining_bytes -= len(block)
    return f"line {number} of {path}"


def _rows(piece: Piece, path: Path) -> Generator[_Text]:
    with pq.ParquetFile(path) as parquet:
        groups = list(range(piece.begin, piece.end))
        num_rows = sum(parquet.metadata.row_group(number).num_rows for number in groups)
        share = piece.size_bytes / max(1, num_rows)
        row_bytes = 0.0
        for batch in parquet.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=[piece.file.column], use_threads=False
        ):
            for text in batch.column(0).to_pylist():
                row_bytes += share
                if text is not None and len(text) > MAX_DOCUMENT_BYTES:
                    limit_words = f"at most {MAX_DOCUMENT_BYTES:,} are read: cut it"
                    raise InputError(f"a row of {path} holds {len(text):,} characters, {limit_words}")
                yield text or "", int(row_bytes)
                row_bytes -= int(row_bytes)


def _ids(piece: Piece, path: Path) -> Generator[tuple[Tokens, int]]:
    with pq.ParquetFile(path) as parquet:
        for number in range(piece.begin, piece.end):
            for tokens in group_blocks(parquet, piece.file.column, number, path):
                if len(tokens.ids) and tokens.ids.min() < 0:
                    raise InputError(f"column {piece.file.column} of {path} holds the negative id {tokens.ids.min()}")
                yield tokens, tokens.ids.nbytes
