"""Reads rows of CSV, Parquet and Arrow files, such as those of a folder that `datasets` saved."""

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from platform.common.errors import InputError, one_line
from platform.common.places import InputPath, RemotePath
from trainers.data.footer import open_parquet

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_BLOCK_BYTES = 2**23
"""Bytes of a CSV file that are parsed at once, and so the largest possible row."""


def csv_columns(path: InputPath, suffix: str, compression: str) -> list[str]:
    """Returns the names of the columns.

    Raises:
        InputError: the file is not CSV.
    """
    with _csv(path, suffix, compression, None) as reader:
        return list(reader.schema.names)


def csv_texts(path: InputPath, suffix: str, compression: str, column: str) -> Iterator[str]:
    """Yields the column's texts.

    Raises:
        InputError: a row has more or fewer cells than the first, or is too long.
    """
    with _csv(path, suffix, compression, column) as reader:
        try:
            for batch in reader:
                yield from batch.column(0).to_pylist()
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{path} is no CSV of equal rows below {_BLOCK_BYTES / 2**20:.0f} MiB: {one_line(error)}"
            ) from error


@contextlib.contextmanager
def _csv(
    path: InputPath, suffix: str, compression: str, column: str | None
) -> Generator[pyarrow.csv.CSVStreamingReader]:
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=False)
    if column is not None:
        convert = pyarrow.csv.ConvertOptions(
            include_columns=[column], column_types={column: pa.string()}, strings_can_be_null=False
        )
    with path.open("rb") as file:
        stream = pa.PythonFile(file, mode="r")
        try:
            yield pyarrow.csv.open_csv(
                pa.CompressedInputStream(stream, compression) if compression else stream,
                read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pyarrow.csv.ParseOptions(delimiter=_DELIMITERS[suffix], newlines_in_values=True),
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is no CSV with titles in its first row: {one_line(error)}") from error


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
