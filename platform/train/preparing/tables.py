"""Reads rows of CSV, Parquet and Arrow files, such as those of a folder that `datasets` saved."""

import contextlib
import csv
import io
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from platform.common.errors import InputError, one_line
from platform.common.places import InputPath, RemotePath
from platform.train.preparing.opening import MAX_DOCUMENT_BYTES, Opened
from platform.train.preparing.skipping import BadDocument, Skipped
from trainers.data.footer import open_parquet

if TYPE_CHECKING:
    import _csv

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def csv_columns(path: InputPath, suffix: str, compression: str) -> list[str]:
    """Returns the names of the columns; none if the file is empty.

    Raises:
        BadDocument: the first row is no row of CSV, or is no UTF-8.
        OSError: the file cannot be read.
    """
    with _csv_rows(path, suffix, compression) as rows:
        return _titles(rows, path)


def csv_texts(path: InputPath, suffix: str, compression: str, column: str, skipped: Skipped) -> Iterator[str]:
    """Yields the column's texts; "" for a row that is skipped.

    Raises:
        BadDocument: a row has other cells than the titles, is quoted in another way than CSV, or its text is no UTF-8.
        OSError: the file cannot be read.
    """
    with _csv_rows(path, suffix, compression) as rows:
        titles = _titles(rows, path)
        place, num_cells = titles.index(column), len(titles)
        while (cells := _next(rows, path, slice(place, place + 1), num_cells, skipped)) is not None:
            if cells:
                yield cells[place]


def _titles(rows: "_csv.Reader", path: InputPath) -> list[str]:
    """Returns the first row that is no blank line; empty if there is none."""
    while (cells := _next(rows, path, slice(None), None, Skipped(lambda: False))) == []:
        pass
    return cells or []


def _next(
    rows: "_csv.Reader", path: InputPath, wanted: slice, num_cells: int | None, skipped: Skipped
) -> list[str] | None:
    """Returns the next row, which must have `num_cells`, if given, of which the `wanted` ones are UTF-8; empty for a
    blank line or a row that is skipped; None at the end.
    """
    first = rows.line_num + 1
    try:
        if not (cells := next(rows, None)) or len(cells) == (num_cells or len(cells)):
            "".join((cells or [])[wanted]).encode()
            return cells
        bad = BadDocument(f"line {first} of {path} has {len(cells)} cells, the titles are {num_cells}", "other cells")
    except csv.Error as error:
        rule = "a cell that begins with a quote ends with one, and a quote inside it is doubled"
        reason = str(error).replace("\t", r"\t")
        bad = BadDocument(f"line {first} of {path} is no row of CSV: {reason}; {rule}", "no row of CSV")
    except UnicodeEncodeError:
        bad = BadDocument(f"line {first} of {path} is no UTF-8 text", "no UTF-8 text")
    skipped.add(bad)
    return []


class _Decompressed(io.RawIOBase):
    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._opened.read(len(buffer))
        buffer[: len(read)] = read
        return len(read)


@contextlib.contextmanager
def _csv_rows(path: InputPath, suffix: str, compression: str) -> Generator["_csv.Reader"]:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    with Opened(path, compression) as opened:
        # A byte that is no UTF-8 becomes half of a surrogate pair, which no other text holds.
        text = io.TextIOWrapper(io.BufferedReader(_Decompressed(opened)), "utf-8-sig", "surrogateescape", newline="")
        yield csv.reader(text, delimiter=_DELIMITERS[suffix], strict=True)


@contextlib.contextmanager
def parquet(path: InputPath) -> Generator[pq.ParquetFile]:
    """Opens a Parquet file.

    Raises:
        ValueError: the file is not Parquet.
    """
    if isinstance(path, Path):
        with open_parquet(path) as file:
            yield file
        return
    try:
        with path.open() as opened, pq.ParquetFile(opened) as file:
            yield file
    except pa.ArrowException as error:
        raise ValueError(f"cannot read {path} as Parquet: {one_line(error)}") from error


@contextlib.contextmanager
def arrow_batches(path: InputPath) -> Generator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Opens an Arrow file in stream format, as `datasets` writes it, or file format; yields its schema and batches.

    Raises:
        InputError: the file is not Arrow.
    """
    with path.open() if isinstance(path, RemotePath) else pa.memory_map(str(path)) as mapped:
        try:
            if mapped.read(6) == b"ARROW1":
                file = pyarrow.ipc.open_file(mapped)
                yield file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
            else:
                mapped.seek(0)
                stream = pyarrow.ipc.open_stream(mapped)
                yield stream.schema, iter(stream)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is no Arrow file, or is cut short: {one_line(error)}") from error
