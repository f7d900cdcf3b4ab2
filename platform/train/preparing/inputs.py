"""The input files, and how their documents are divided into pieces and shards.

The division depends only on the files and the shard's size, so any number of workers writes the same shards.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa

from platform.common.errors import InputError, one_line
from platform.common.places import InputPath, RemotePath, input_path
from platform.common.text import plural
from platform.study.folder import real_path, user_path
from platform.train.preparing import megatron_pairs, raw_ids, tables
from platform.train.preparing.folders import SUFFIX_WORDS, data_files, kind_of
from platform.train.preparing.opening import MAX_DOCUMENT_BYTES, Opened, check_text, suffix_of
from platform.train.preparing.raw_ids import RawType
from trainers.data.footer import COLUMNS, MARKS, is_list
from trainers.records.plain_files import open_plain

Kind = Literal[
    "text", "json lines", "csv text", "parquet text", "parquet ids", "arrow text", "arrow ids", "megatron", "raw ids"
]
IDS: tuple[Kind, ...] = ("parquet ids", "arrow ids", "megatron", "raw ids")
"""Kinds of files that already hold token ids."""

_BLOCK_BYTES = 2**20
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """A file, or a Megatron pair named by its .bin."""

    path: str
    kind: Kind
    size_bytes: int
    modified_ns: int
    column: str = ""
    """Column of text or token ids in Parquet, Arrow or CSV; "" for other kinds."""
    id_type: str = ""
    """NumPy type of the token ids; "" for text."""
    compression: str = ""
    """Compression of the whole file; "" for none."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a file that begins and ends at document boundaries."""

    file: InputFile
    begin: int
    """First byte, row group (Parquet) or document (Megatron)."""
    end: int
    size_bytes: int
    """Bytes of input in this piece."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The pieces that make up one output file."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return f"tokens-{self.number:06d}.parquet"

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The input files, before they are read."""

    files: list[InputFile]
    left_out: list[InputPath]
    """Files in the folders that have a data suffix but are metadata."""

    def sentences(self) -> Iterator[str]:
        """Yields a sentence on the files to read for each kind, and one on the files left out."""
        for kind in dict.fromkeys(file.kind for file in self.files):
            files = [file for file in self.files if file.kind == kind]
            size = sum(file.size_bytes for file in files) / 2**20
            yield f"Reads {plural(len(files), 'file')} of {kind}, {size:,.1f} MiB: {_some(file.path for file in files)}"
        if self.left_out:
            yield f"Leaves out {plural(len(self.left_out), 'file')}: {_some(map(str, self.left_out))}"


def _some(paths: Iterable[str]) -> str:
    names = [PurePath(path).name for path in paths]
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def find(paths: Sequence[InputPath], out: Path, text_key: str, raw: RawType | None = None) -> Selection:
    """Returns the files that `paths` name.

    A folder stands for all data files below it. A file counts once, by whatever links it is reached.

    Raises:
        InputError: a path is missing, of unknown kind or named twice, a folder needs a choice, or `out` lies in a
            folder.
    """
    inputs: dict[tuple[int | str, int | str], InputFile] = {}
    left_out: list[InputPath] = []
    for path in paths:
        path = path if isinstance(path, RemotePath) else user_path(path).absolute()
        if not path.exists():
            raise InputError(f"there is no input {path}")
        is_folder = path.is_dir()
        if is_folder:
            path = path if isinstance(path, RemotePath) else real_path(path)
            if out == path or path in out.parents:
                raise InputError(f"--out {out} lies in the input folder {path}: give a folder outside of it")
            files, others = data_files(path)
            left_out += others
            files = [file for file in files if file.suffix.lower() != ".idx" or file.with_suffix(".bin") not in files]
        elif not kind_of(path):
            raise InputError(f"the kind of {path} is unknown: its suffix must be one of {SUFFIX_WORDS}")
        else:
            files = [path]
        before = set(inputs)
        for file in files:
            file = file.with_suffix(".bin") if file.suffix == ".idx" else file
            described = _described(file, text_key, raw)
            stat = file.stat()
            place = stat.st_dev, stat.st_ino
            if place in before or (place in inputs and not is_folder):
                raise InputError(f"{file} is named twice: each input counts once")
            inputs.setdefault(place, described)
    return Selection(files=list(inputs.values()), left_out=left_out)


def shards(files: Iterable[InputFile], shard_bytes: int, separator: bytes | None) -> list[Shard]:
    """Returns the shards that the files are divided into, in the files' order.

    Raises:
        InputError: a document is too long, or a file cannot be read.
    """
    completed: list[Shard] = []
    pieces: list[Piece] = []
    size_bytes = 0
    for file in files:
        for piece in _pieces(file, shard_bytes, separator):
            if pieces and size_bytes + piece.size_bytes > shard_bytes:
                completed.append(Shard(number=len(completed), pieces=tuple(pieces)))
                pieces, size_bytes = [], 0
            pieces.append(piece)
            size_bytes += piece.size_bytes
    return [*completed, Shard(number=len(completed), pieces=tuple(pieces))] if pieces else completed


def _described(path: InputPath, text_key: str, raw: RawType | None) -> InputFile:
    kind, (suffix, compression) = kind_of(path), suffix_of(path)
    try:
        if isinstance(path, Path):
            os.close(open_plain(path, links=True))  # opening checks for a pipe, on which reading would wait
        stat = path.stat()
        text_file = InputFile(
            path=str(path),
            kind="text",
            size_bytes=stat.st_size,
            modified_ns=stat.st_mtime_ns,
            compression=compression,
        )
        if kind == "parquet":
            with tables.parquet(path) as parquet:
                if MARKS.encode() in (parquet.metadata.metadata or {}):
                    raise InputError(
                        f"{path} marks tokens to train on, which would be lost: give its folder to --data, or with a"
                        " weight to a mixture"
                    )
                return _with_column(text_file, parquet.schema_arrow, text_key)
        if kind == "arrow":
            with tables.arrow_batches(path) as (schema, _):
                in_parquet = _with_column(text_file, schema, text_key)
            arrow_kind: Kind = "arrow text" if in_parquet.kind == "parquet text" else "arrow ids"
            return dataclasses.replace(in_parquet, kind=arrow_kind)
        if kind == "megatron":
            return _of_bare_ids(text_file, path, raw)
        check_text(path, compression, kind)
        if kind == "csv":
            columns = tables.csv_columns(path, suffix, compression)
            if not columns:
                raise InputError(f"{path} has no titles: the first row of a CSV file names its columns")
            if (count := columns.count(text_key)) > 1:
                raise InputError(f"{path} has {count} columns {text_key}: rename all but the one with the text")
            if not count:
                named = ", ".join(columns)
                raise InputError(f"{path} has no column {text_key}, its columns are {named}: --text-key names another")
            return dataclasses.replace(text_file, kind="csv text", column=text_key)
        return text_file if kind == "text" else dataclasses.replace(text_file, kind="json lines")
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or one_line(error)}") from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def _of_bare_ids(file: InputFile, path: InputPath, raw: RawType | None) -> InputFile:
    if isinstance(path, RemotePath):
        raise InputError(f"{path} holds bare token ids, which are read from this machine alone: copy it here")
    if path.with_suffix(".idx").is_file():
        return dataclasses.replace(file, kind="megatron", id_type=megatron_pairs.Pair(path).id_type)
    if raw is None:
        raise InputError(
            f"{path} has no .idx beside it, as a Megatron pair has: token ids alone want the type of their integers,"
            " --raw-ids uint16 or uint16:END with the id that ends a document"
        )
    raw_ids.check(path, raw)
    return dataclasses.replace(file, kind="raw ids", id_type=raw.id_type)


def _with_column(file: InputFile, schema: pa.Schema, text_key: str) -> InputFile:
    path = file.path
    for name in (text_key, *COLUMNS):
        if (count := schema.names.count(name)) > 1:
            raise InputError(f"{path} has {count} columns {name}: rename all but one of them")
    if text_key in schema.names:
        kind = schema.field(text_key).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return dataclasses.replace(file, kind="parquet text", column=text_key)
        raise InputError(f"column {text_key} of {path} must hold text, got {kind}: --text-key names another")
    column = next((name for name in COLUMNS if name in schema.names), None)
    if column is None:
        raise InputError(
            f"{path} has no column {text_key} with text nor {' or '.join(COLUMNS)} with token ids; its columns are"
            f" {', '.join(schema.names)}: --text-key names the one with text"
        )
    kind = schema.field(column).type
    if not is_list(kind):
        raise InputError(
            f"column {column} of {path} holds {kind} and no lists, so where a document ends is not known: --data reads"
            " it as it is"
        )
    while is_list(kind):
        kind = kind.value_type
    if not pa.types.is_integer(kind):
        raise InputError(f"column {column} of {path} must hold lists of integers, got lists of {kind}")
    id_type = str(kind) if str(kind) in ("uint8", "uint16") else "int32"
    return dataclasses.replace(file, kind="parquet ids", column=column, id_type=id_type)


def _pieces(file: InputFile, shard_bytes: int, separator: bytes | None) -> list[Piece]:
    try:
        match file.kind:
            case "csv text" | "arrow text" | "arrow ids" | "raw ids":
                bounds, sizes = [0, file.size_bytes], [file.size_bytes]
            case "text" | "json lines" if file.compression:
                bounds, sizes = [0, file.size_bytes], [file.size_bytes]
            case "text" if separator is None:
                if file.size_bytes > MAX_DOCUMENT_BYTES:
                    raise InputError(
                        f"{file.path} is one document of {file.size_bytes / 2**20:,.0f} MiB, at most"
                        f" {MAX_DOCUMENT_BYTES / 2**20:.0f} can be: --separator names the text between documents, as"
                        r" in --separator '\n\n'"
                    )
                bounds, sizes = [0, file.size_bytes], [file.size_bytes]
            case "text" | "json lines":
                divider = b"\n"
                if file.kind == "text" and separator is not None:
                    divider = separator_in(file, separator)
                bounds = _text_bounds(file, shard_bytes, divider)
                sizes = np.diff(bounds).tolist()
            case "megatron":
                bounds, sizes = megatron_pairs.Pair(Path(file.path)).bounds(shard_bytes)
            case _:
                bounds, sizes = _group_bounds(file, shard_bytes)
    except OSError as error:
        raise InputError(f"cannot read {file.path}: {error.strerror or one_line(error)}") from error
    return [
        Piece(file=file, begin=begin, end=end, size_bytes=size)
        for begin, end, size in zip(bounds[:-1], bounds[1:], sizes, strict=True)
        if end > begin
    ]


def separator_in(file: InputFile, separator: bytes) -> bytes:
    """Returns the separator with the line ends of the text file's first line.

    Raises:
        OSError: the file cannot be read.
    """
    if b"\n" not in separator or b"\r" in separator:
        return separator
    with Opened(input_path(file.path), file.compression) as stream:
        last = b""
        while block := stream.read(_BLOCK_BYTES):
            if (place := (last + block).find(b"\n")) >= 0:
                is_windows = (last + block)[:place].endswith(b"\r")
                return separator.replace(b"\n", b"\r\n") if is_windows else separator
            last = block[-1:]
    return separator


def _text_bounds(file: InputFile, shard_bytes: int, separator: bytes) -> list[int]:
    """Returns byte positions between documents, about `shard_bytes` apart, at which pieces begin and end."""
    bounds = [0]
    with input_path(file.path).open("rb") as stream:
        while bounds[-1] + shard_bytes < file.size_bytes:
            after = _document_end(stream, bounds[-1] + shard_bytes, separator)
            if after is None:
                if file.size_bytes - bounds[-1] > shard_bytes + MAX_DOCUMENT_BYTES:
                    raise too_long(file, bounds[-1] + shard_bytes)
                break
            bounds.append(after)
    return [*bounds, file.size_bytes]


def _document_end(stream: BinaryIO, begin: int, separator: bytes) -> int | None:
    """Returns the position after the first separator from `begin` on; None if `MAX_DOCUMENT_BYTES` contain none."""
    stream.seek(begin)
    read = b""
    while len(read) <= MAX_DOCUMENT_BYTES:
        block = stream.read(_BLOCK_BYTES)
        searched = max(0, len(read) - len(separator))
        read += block
        if (place := read.find(separator, searched)) >= 0:
            return begin + place + len(separator)
        if not block:
            return None
    return None


def too_long(file: InputFile, place: int) -> InputError:
    remedy = "--separator names the text between documents" if file.kind == "text" else "cut it into several"
    return InputError(
        f"the document at byte {place} of {file.path} is longer than {MAX_DOCUMENT_BYTES / 2**20:.0f} MiB: {remedy}"
    )


def _group_bounds(file: InputFile, shard_bytes: int) -> tuple[list[int], list[int]]:
    """Returns the row groups at which pieces begin, and the bytes of each piece."""
    bounds, sizes = [0], [0]
    with tables.parquet(input_path(file.path)) as parquet:
        metadata = parquet.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            leaves = (group.column(leaf) for leaf in range(group.num_columns))
            size = sum(
                leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.split(".")[0] == file.column
            )
            if sizes[-1] and sizes[-1] + size > shard_bytes:
                bounds.append(number)
                sizes.append(0)
            sizes[-1] += size
        return [*bounds, metadata.num_row_groups], sizes
