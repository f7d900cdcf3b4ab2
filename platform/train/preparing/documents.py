"""Yields the documents of a piece of a file as tokens."""

import dataclasses
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from platform.common.errors import InputError, one_line
from platform.common.places import InputPath, input_path
from platform.train.preparing import raw_ids, tables
from platform.train.preparing.chats import ChatEncoder, ChatError, ChatSettings, messages_of, tools_of
from platform.train.preparing.inputs import Piece, separator_in, too_long
from platform.train.preparing.megatron_pairs import Pair
from platform.train.preparing.opening import MAX_DOCUMENT_BYTES, Opened, suffix_of
from platform.train.preparing.raw_ids import RawType
from platform.train.preparing.skipping import CUT, LEFT_OUT, BadDocument, Skipped
from platform.train.preparing.tokenizer import Encode
from trainers.data.footer import Tokens, group_blocks, ids_of

_BLOCK_BYTES = 2**20
_BATCH_BYTES = 2**18
"""Characters of text that are encoded at once."""
_BATCH_ROWS = 256

_Text = tuple[str, int]
"""A document, and the number of bytes that it takes in its file."""
NO_TOKENS = Tokens(ids=np.zeros(0, np.uint8), document_starts=np.zeros(0, np.int64), marks=np.zeros(0, np.bool_))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chats:
    """Reads lines that hold chats, in one process."""

    encoder: ChatEncoder
    settings: ChatSettings


def documents(
    piece: Piece,
    *,
    encode: Encode,
    text_key: str,
    separator: bytes | None,
    raw: RawType | None = None,
    skipped: Skipped | None = None,
    chats: Chats | None = None,
) -> Generator[tuple[Tokens, int]]:
    """Yields the piece's documents in order, in batches, each with the bytes that it takes in the input.

    `skipped` collects documents that cannot be read; without it the first one ends the run.

    Raises:
        InputError: the file changed, or its content does not fit its kind.
    """
    path, skipped = input_path(piece.file.path), skipped or Skipped(lambda: False)
    try:
        match piece.file.kind:
            case "megatron":
                for tokens in Pair(Path(path)).documents(piece.begin, piece.end):
                    yield tokens, tokens.ids.nbytes
            case "parquet ids":
                yield from _ids(piece, path)
            case "parquet text":
                yield from _encoded(_sized(_parquet_rows(piece, path, skipped), path, skipped), encode)
            case "arrow text" | "csv text":
                yield from _encoded(_sized(_table_rows(piece, path, skipped), path, skipped), encode)
            case "arrow ids":
                with tables.arrow_batches(path) as (_, batches):
                    for batch in batches:
                        yield _checked(ids_of(batch[piece.file.column], f"{piece.file.column} of {path}"), piece, path)
            case "raw ids":
                assert raw is not None
                for tokens in raw_ids.documents(Path(path), raw):
                    yield tokens, tokens.ids.nbytes
            case "json lines" if chats is not None:
                yield from _chats(piece, chats, skipped)
            case "json lines":
                yield from _encoded(_lines(piece, text_key, skipped), encode)
            case "text":
                yield from _encoded(_texts(piece, path, separator, skipped), encode)
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


def _split(piece: Piece, separator: bytes) -> Generator[tuple[int, bytes, int]]:
    """Yields the parts between separators: first byte, content, and bytes taken in the file.

    The bytes taken in a compressed file are all that were read since the previous part.
    """
    path, compression = input_path(piece.file.path), piece.file.compression
    begin, unfinished, stored = piece.begin, b"", 0
    with Opened(path, compression) as stream:
        if not compression:
            stream.seek(begin)
        remaining_bytes = sys.maxsize if compression else piece.end - piece.begin
        while remaining_bytes:
            block = stream.read(min(_BLOCK_BYTES, remaining_bytes))
            if not block and not compression:
                raise InputError(f"{path} became shorter while it was read")
            if not block:
                break
            remaining_bytes -= len(block)
            *parts, unfinished = (unfinished + block).split(separator)
            for part in parts:
                length = len(part) + len(separator)
                yield begin, part, stream.stored - stored if compression else length
                begin, stored = begin + length, stream.stored
            if len(unfinished) > MAX_DOCUMENT_BYTES:
                raise too_long(piece.file, begin)
        yield begin, unfinished, stream.stored - stored if compression else len(unfinished) + len(separator)


def _texts(piece: Piece, path: InputPath, separator: bytes | None, skipped: Skipped) -> Generator[_Text]:
    divided = None if separator is None else _split(piece, separator_in(piece.file, separator))
    for begin, part, size in _undivided(piece, path) if divided is None else divided:
        try:
            # A byte-order mark may precede the first document.
            yield part.decode("utf-8" if begin else "utf-8-sig"), size
        except UnicodeDecodeError as error:
            place = f"{path} is no UTF-8 text: byte {begin + error.start} is {error.reason}"
            skipped.add(BadDocument(place, "no UTF-8 text"))
            yield "", size


def _undivided(piece: Piece, path: InputPath) -> Generator[tuple[int, bytes, int]]:
    with Opened(path, piece.file.compression) as stream:
        parts: list[bytes] = []
        while block := stream.read(_BLOCK_BYTES):
            parts.append(block)
            if sum(map(len, parts)) > MAX_DOCUMENT_BYTES:
                raise too_long(piece.file, 0)
        yield 0, b"".join(parts), stream.stored


def _lines(piece: Piece, text_key: str, skipped: Skipped) -> Generator[_Text]:
    for begin, line, size in _split(piece, b"\n"):
        text = ""
        if line.strip():
            try:
                text = _line_text(line, piece, begin, text_key)
            except BadDocument as error:
                skipped.add(error)
        yield text, size


def _chats(piece: Piece, chats: Chats, skipped: Skipped) -> Generator[tuple[Tokens, int]]:
    """Yields each line's chat as a document; nothing for a chat that is skipped."""
    settings, unread = chats.settings, 0
    for begin, line, size in _split(piece, b"\n"):
        unread += size
        try:
            value = _object(line, piece, begin) if line.strip() else None
            chat = None if value is None else chats.encoder.encode(messages_of(value), tools_of(value))
        except ChatError as error:
            skipped.add(_bad(error.words, error.reason, piece, begin))
            continue
        except BadDocument as error:
            skipped.add(error)
            continue
        if chat is not None and 0 < settings.pack < len(chat.ids):
            chat = _shortened(chat, settings, skipped, lambda begin=begin: _line_of(piece, begin))
        if chat is not None:
            yield chat, unread
            unread = 0
    yield NO_TOKENS, unread


def _shortened(chat: Tokens, settings: ChatSettings, skipped: Skipped, line: Callable[[], str]) -> Tokens | None:
    """Returns an over-long chat as the settings demand (cut, or None if left out), and reports it."""
    limit, size = settings.pack, len(chat.ids)
    assert chat.marks is not None

    def place() -> str:
        return f"{line()} has {size:,}"

    if settings.over_long == "drop":
        skipped.tell(LEFT_OUT, f"longer than the {limit:,} tokens of --pack", place)
        return None
    if not chat.marks[:limit].any():
        skipped.tell(LEFT_OUT, f"no assistant's token among the first {limit:,}", place)
        return None
    skipped.tell(CUT, f"longer than the {limit:,} tokens of --pack", place)
    return dataclasses.replace(chat, ids=chat.ids[:limit], marks=chat.marks[:limit])


def _bad(words: str, reason: str, piece: Piece, begin: int) -> BadDocument:
    return BadDocument(words.replace("LINE", _line_of(piece, begin), 1), reason)


def _object(line: bytes, piece: Piece, begin: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad(f"LINE is not JSON: {error}", "not JSON", piece, begin) from error
    if not isinstance(value, dict):
        raise _bad("LINE is not a JSON object", "not a JSON object", piece, begin)
    return value  # type: ignore[reportUnknownVariableType]


def _line_text(line: bytes, piece: Piece, begin: int, text_key: str) -> str:
    def bad(words: str, reason: str) -> BadDocument:
        return _bad(words, reason, piece, begin)

    value = _object(line, piece, begin)
    if text_key not in value:
        keys = ", ".join(map(str, value)) or "none"
        chat = "--chat reads chats" if "messages" in value else "--text-key names another"
        raise bad(f'LINE has no key "{text_key}", its keys: {keys}; {chat}', f'no key "{text_key}"')
    text = value[text_key]
    if not isinstance(text, str):
        raise bad(f'"{text_key}" in LINE must be text, got {json.dumps(text)[:60]}', f'no text at "{text_key}"')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad(f'"{text_key}" in LINE holds half of a surrogate pair', "half of a surrogate pair") from error
    return text


def _line_of(piece: Piece, begin: int) -> str:
    """Returns the number of the line at byte `begin` as text. Lines are only counted for an error."""
    number, remaining_bytes = 1, begin
    with Opened(input_path(piece.file.path), piece.file.compression) as stream:
        while remaining_bytes and (block := stream.read(min(_BLOCK_BYTES, remaining_bytes))):
            number += block.count(b"\n")
            remaining_bytes -= len(block)
    return f"line {number} of {piece.file.path}"


def _texts_of(column: pa.Array, path: InputPath, skipped: Skipped) -> Iterator[str | None]:
    """Yields the texts of a column; None for one that is skipped, because its bytes are no UTF-8 (writers of Parquet
    and Arrow do not check them).
    """
    for scalar in column:
        try:
            yield scalar.as_py()
        except UnicodeDecodeError:
            skipped.add(BadDocument(f"a row of {path} is no UTF-8 text", "no UTF-8 text"))
            yield None


def _parquet_rows(piece: Piece, path: InputPath, skipped: Skipped) -> Generator[tuple[str | None, float]]:
    """Yields each row's text with its share of the piece's bytes."""
    with tables.parquet(path) as parquet:
        groups = list(range(piece.begin, piece.end))
        num_rows = sum(parquet.metadata.row_group(number).num_rows for number in groups)
        share = piece.size_bytes / max(1, num_rows)
        for batch in parquet.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=[piece.file.column], use_threads=False
        ):
            for text in _texts_of(batch.column(0), path, skipped):
                yield text, share


def _table_rows(piece: Piece, path: InputPath, skipped: Skipped) -> Generator[tuple[str | None, float]]:
    file = piece.file
    if file.kind == "csv text":
        for text in tables.csv_texts(path, suffix_of(path)[0], file.compression, file.column, skipped):
            yield text, len(text)
        return
    with tables.arrow_batches(path) as (_, batches):
        for batch in batches:
            for text in _texts_of(batch[file.column], path, skipped):
                yield text, len(text or "")


def _sized(rows: Iterable[tuple[str | None, float]], path: InputPath, skipped: Skipped) -> Generator[_Text]:
    """Yields the rows' texts ("" for one that is too long), each with the whole bytes accumulated so far."""
    row_bytes = 0.0
    for text, size in rows:
        row_bytes += size
        if text is not None and len(text) > MAX_DOCUMENT_BYTES:
            limit_words = f"at most {MAX_DOCUMENT_BYTES:,} are read: cut it"
            skipped.add(BadDocument(f"a row of {path} holds {len(text):,} characters, {limit_words}", "too long"))
            text = ""
        yield text or "", int(row_bytes)
        row_bytes -= int(row_bytes)


def _ids(piece: Piece, path: InputPath) -> Generator[tuple[Tokens, int]]:
    with tables.parquet(path) as parquet:
        for number in range(piece.begin, piece.end):
            for tokens in group_blocks(parquet, piece.file.column, number, piece.file.path):
                yield _checked(tokens, piece, path)


def _checked(tokens: Tokens, piece: Piece, path: InputPath) -> tuple[Tokens, int]:
    if len(tokens.ids) and tokens.ids.min() < 0:
        raise InputError(f"column {piece.file.column} of {path} holds the negative id {tokens.ids.min()}")
    return tokens, tokens.ids.nbytes
