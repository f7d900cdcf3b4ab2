"""A Parquet file of token ids: its column, the number of tokens in each row group, and its tokens block by block."""

import dataclasses
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainers.records.plain_files import open_plain

COLUMNS = ("tokens", "input_ids")
"""Names for the column of token ids, in the order in which they are tried."""

MARKS = "trained"
"""Name of the column that marks tokens with 1 or 0, and of its sum in a file's metadata."""
PADDING = "padding"
"""Name of the number of padding tokens in a file's metadata."""

_BLOCK_TOKENS = 2**20
_MOST_FOOTER_BYTES = 256 * 2**20
_KEPT_TYPES = (pa.uint8(), pa.uint16(), pa.int32())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Consecutive token ids."""

    ids: npt.NDArray[Any]
    """uint8, uint16 or int32."""
    document_starts: npt.NDArray[np.int64]
    """Indices in `ids` at which a document begins, ascending."""
    marks: npt.NDArray[np.bool_] | None = None
    """Whether each token is to be trained on; None if unknown or not requested."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    column: str
    num_rows: int
    group_tokens: tuple[int, ...]
    """Number of tokens in each row group."""
    lowest_id: int
    highest_id: int
    trained: int | None = None
    """Number of marked tokens; None if the file has no marks."""
    padding: int = 0
    """Number of tokens that fill up sequences."""

    @property
    def num_tokens(self) -> int:
        return sum(self.group_tokens)


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Returns the Parquet file at `path`.

    Raises:
        ValueError: the file is unreadable or not Parquet.
    """
    with os.fdopen(open_plain(path, links=True), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 8))
        end = file.read(8)
    if end[4:] == b"PAR1" and (length := int.from_bytes(end[:4], "little")) > _MOST_FOOTER_BYTES:
        raise ValueError(f"cannot read {path} as Parquet: its footer has {length:,} bytes, it is damaged")
    try:
        parquet = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {path} as Parquet: {error}") from error
    metadata = parquet.metadata
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        # Arrow takes memory for what the footer says, not for what the file holds.
        if any(group.column(leaf).total_compressed_size > size for leaf in range(group.num_columns)):
            parquet.close()
            raise ValueError(f"cannot read {path} as Parquet: its footer names more bytes than it has, it is damaged")
    return parquet


def read_footer(path: Path) -> Footer:
    """Returns the footer of the file at `path`. Reads the file's data only for values that the footer does not state
    reliably.

    Raises:
        ValueError: the file is not Parquet, has no column of token ids, or a row group lacks some of its ids.
    """
    with open_parquet(path) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        column = next((name for name in COLUMNS if name in schema.names), None)
        if column is None:
            raise ValueError(f"{path} has no column {' or '.join(COLUMNS)}; its columns are {', '.join(schema.names)}")
        if schema.names.count(column) > 1:
            raise ValueError(f"{path} has {schema.names.count(column)} columns {column}: rename all but one of them")
        kind = schema.field(column).type
        while is_list(kind):
            kind = kind.value_type
        if not pa.types.is_integer(kind):
            raise ValueError(f"column {column} of {path} must hold integers or lists of integers, got {kind}")
        written = metadata.metadata or {}
        trained = written.get(MARKS.encode()) if MARKS in schema.names else None
        leaves = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        leaf = next(number for number, name in enumerate(leaves) if name.split(".")[0] == column)
        # Writers differ in whether they count an empty list as a null, so other writers' footers do not give the
        # tokens.
        is_exact = str(metadata.created_by).startswith("parquet-cpp-arrow")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        tokens: list[int] = []
        bounds: list[tuple[int, int]] = []
        for number, group in enumerate(groups):
            chunk = group.column(leaf)
            statistics = chunk.statistics
            if (
                is_exact
                and statistics is not None
                and statistics.has_min_max
                and statistics.has_null_count
                and not statistics.null_count
            ):
                tokens.append(chunk.num_values)
                bounds.append((statistics.min, statistics.max))
            else:
                tokens.append(0)
                for block in group_blocks(parquet, column, number, path):
                    tokens[-1] += len(block.ids)
                    if len(block.ids):
                        bounds.append((int(block.ids.min()), int(block.ids.max())))
    return Footer(
        column=column,
        num_rows=metadata.num_rows,
        group_tokens=tuple(tokens),
        lowest_id=min((low for low, _ in bounds), default=0),
        highest_id=max((high for _, high in bounds), default=0),
        trained=None if trained is None else int(trained),
        padding=int(written.get(PADDING.encode(), 0)),
    )


def blocks(path: Path, footer: Footer, first_group: int, *, with_marks: bool = False) -> Generator[Tokens]:
    """Yields the tokens of the file at `path` from row group `first_group` to its end, about a million at a time.

    Raises:
        ValueError: the file differs from its footer.
    """
    with open_parquet(path) as parquet:
        for number in range(first_group, len(footer.group_tokens)):
            num_tokens = 0
            for block in group_blocks(parquet, footer.column, number, path, with_marks=with_marks):
                num_tokens += len(block.ids)
                yield block
            if num_tokens != footer.group_tokens[number]:
                raise ValueError(
                    f"row group {number} of {path} holds {num_tokens} tokens, its footer says"
                    f" {footer.group_tokens[number]}: write the file anew with python -m platform.prepare"
                )


def group_blocks(
    parquet: pq.ParquetFile, column: str, number: int, path: Path | str, *, with_marks: bool = False
) -> Generator[Tokens]:
    """Yields the tokens of row group `number`, about a million at a time; a document is never split over blocks.

    Raises:
        ValueError: the row group cannot be read, or has no token ids.
    """
    source = f"column {column} of {path}"
    group = parquet.metadata.row_group(number)
    leaves = (group.column(leaf) for leaf in range(group.num_columns))
    values = next(leaf.num_values for leaf in leaves if leaf.path_in_schema.split(".")[0] == column)
    rows = min(_BLOCK_TOKENS, max(1, group.num_rows * _BLOCK_TOKENS // max(values, _BLOCK_TOKENS)))
    try:
        columns = [column, MARKS] if with_marks else [column]
        for batch in parquet.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            tokens = ids_of(batch.column(column), source)
            if with_marks:
                marks = ids_of(batch.column(MARKS), f"column {MARKS} of {path}").ids.astype(bool)
                if len(marks) != len(tokens.ids):
                    raise ValueError(f"{source} has {len(tokens.ids)} token ids where {MARKS} has {len(marks)}")
                tokens = dataclasses.replace(tokens, marks=marks)
            yield tokens
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {source}: {error}") from error


def ids_of(column: pa.Array, source: str) -> Tokens:
    """Returns the ids of the column's rows, and the indices at which its non-empty lists begin."""
    offsets = np.arange(len(column) + 1) if is_list(column.type) else np.zeros(0, np.int64)
    while is_list(column.type):
        lengths = _as_numpy(pc.call_function("list_value_length", [column]))
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[offsets]
        column = column.flatten()
    if column.null_count:
        raise ValueError(f"{source} has empty places among its token ids")
    if column.type not in _KEPT_TYPES:
        try:
            column = column.cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise ValueError(f"{source} holds a value that cannot be a token id: {error}") from error
    return Tokens(ids=_as_numpy(column), document_starts=offsets[:-1][np.diff(offsets) > 0])


def _as_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Returns the integers, with 0 for null."""
    if column.null_count:
        return pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    if not len(column):
        return np.zeros(0, str(column.type))
    # `to_numpy` would import pandas.
    kind = np.dtype(str(column.type))
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)
