"""Reads rows of CSV, Parquet and Arrow files, such as those of a folder that `datasets` saved."""

import contextlib
import csv
import io
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from platform.common.errors import InputError, one_line
from platform.common.places import InputPath, RemotePath
from platform.train.preparing.opening import MAX_DOCUMENT_BYTES, Opened
from platform.train.preparing.skipping import BadDocument, Skipped
from trainers.data.footer import open_parquet

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


def _titles(rows: "Rows", path: InputPath) -> list[str]:
    """Returns the first row that is no blank line; empty if there is none."""
    while (cells := _next(rows, path, slice(None), None, Skipped(lambda: False))) == []:
        pass
    return cells or []


def _next(rows: "Rows", path: InputPath, wanted: slice, num_cells: int | None, skipped: Skipped) -> list[str] | None:
    """Returns the next row, which must have `num_cells`, if given, of which the `wanted` ones are UTF-8; empty for a
    blank line or a row that is skipped; None at the end.
    """
    first = rows.reader.line_num + 1
    rows.lines.clear()
    try:
        if not (cells := next(rows.reader, None)) or len(cells) == (num_cells or len(cells)):
            "".join((cells or [])[wanted]).encode()
            return cells
        bad = BadDocument(f"line {first} of {path} has {len(cells)} cells, the titles are {num_cells}", "other cells")
    except csv.Error as error:
        reason = str(error).replace("\t", r"\t")
        if place := rows.misquoted():
            rule = "a cell that begins with a quote ends with one: double the quotes inside it"
            line, column = place
            reason = f"{reason} at line {first + line}, column {column}; {rule}"
        bad = BadDocument(f"line {first} of {path} is no row of CSV: {reason}", "no row of CSV")
    except UnicodeEncodeError:
        bad = BadDocument(f"line {first} of {path} is no UTF-8 text", "no UTF-8 text")
    skipped.add(bad)
    return []


class Rows:
    """The rows of a CSV file, with the lines of the last one."""

    def __init__(self, text: Iterator[str], delimiter: str) -> None:
        self.lines: list[str] = []
        self.reader = csv.reader(self._kept(text), delimiter=delimiter, strict=True)
        self._delimiter = delimiter

    def _kept(self, text: Iterator[str]) -> Iterator[str]:
        for line in text:
            self.lines.append(line)
            yield line

    def misquoted(self) -> tuple[int, int] | None:
        """Returns where a quoted cell of the last row breaks the rule, as the line in the row (from 0) and the column
        (from 1) of text behind its closing quote, or of a quote that is never closed; None if no cell does.
        """
        row = "".join(self.lines)
        if (place := _misquoted_place(row, self._delimiter)) is None:
            return None
        number = 0
        while place >= len(self.lines[number]):
            place -= len(self.lines[number])
            number += 1
        return number, place + 1


def _misquoted_place(row: str, delimiter: str) -> int | None:
    place = 0
    while 0 <= place < len(row):
        if row[place] != '"':
            place = row.find(delimiter, place) + 1 or -1
            continue
        opened, place = place, row.find('"', place + 1)
        while place >= 0 and row[place + 1 : place + 2] == '"':
            place = row.find('"', place + 2)
        if place < 0:
            return opened
        place += 1
        if place < len(row) and row[place] not in (delimiter, "\r", "\n"):
            return place
        place += 1
    return None


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
def _csv_rows(path: InputPath, suffix: str, compression: str) -> Generator["Rows"]:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    with Opened(path, compression) as opened:
        # A byte that is no UTF-8 becomes half of a surrogate pair, which no other text holds.
        text = io.TextIOWrapper(io.BufferedReader(_Decompressed(opened)), "utf-8-sig", "surrogateescape", newline="")
        yield Rows(text, _DELIMITERS[suffix])


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
