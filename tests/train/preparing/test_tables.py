"""Rows of CSV, Parquet and Arrow: each cell as it was written, and a sentence for a row that has two readings."""

import csv
import gzip
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platform.common.errors import InputError
from platform.train.preparing import inputs, tables
from platform.train.preparing.documents import documents
from platform.train.preparing.skipping import Skipped
from platform.train.preparing.tokenizer import BYTES, Tokenizer
from trainers.data import footer

# The csv module leaves a lone "\r" unquoted.
parts = st.sampled_from(["a", ",", "\t", '"', "\n", "\r\n", "\\", "é", "\u2028", " "])
cells = st.lists(parts, max_size=8).map("".join)
QUOTING = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)


def _read(path: Path, skipped: Skipped | None = None) -> list[str]:
    """Returns the documents of a file as a worker reads them, a token a byte."""
    encode, read = Tokenizer(name=BYTES, vocab_size=256).encoder(), list[str]()
    for shard in inputs.shards(inputs.find([path], path.parent / "out", "text").files, 2**20, None):
        for piece in shard.pieces:
            for tokens, _ in documents(piece, encode=encode, text_key="text", separator=None, skipped=skipped):
                starts = [*tokens.document_starts.tolist(), len(tokens.ids)]
                read += [tokens.ids[a:b].tobytes().decode() for a, b in itertools.pairwise(starts)]
    return read


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(cells, cells), max_size=6), st.sampled_from([".csv", ".tsv"]), st.sampled_from(QUOTING),
    st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_cells_are_read_as_they_were_written(
    tmp_path: Path, rows: list[tuple[str, str]], suffix: str, quoting: int, end: str, has_mark: bool, is_packed: bool
) -> None:
    delimiter = "," if suffix == ".csv" else "\t"
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows([("id", "text"), *rows])  # type: ignore[arg-type]
    data = written.getvalue().encode("utf-8-sig" if has_mark else "utf-8")
    path = tmp_path / f"a{suffix}{'.gz' if is_packed else ''}"
    path.write_bytes(gzip.compress(data) if is_packed else data)
    compression = "gzip" if is_packed else ""
    assert tables.csv_columns(path, suffix, compression) == ["id", "text"]
    read = list(tables.csv_texts(path, suffix, compression, "text", Skipped(lambda: False)))
    assert read == [text for _, text in rows]


ODD_ROWS: dict[bytes, str] = {
    b'1,"Hello" he said': "line 2 of .*: ',' expected after '\"' at line 2, column 10; .* double the quotes inside it",
    b'1,"He said \\"hi\\" twice"': "line 2 of .* is no row of CSV: ',' expected after '\"'",
    b'1,"never closed': "line 2 of .*: unexpected end of data at line 2, column 3; a cell that begins with a quote",
    b'1,"first\n second" third': "line 2 of .*: ',' expected after '\"' at line 3, column 9;",
    b"1,a,b": "line 2 of .* has 3 cells, the titles are 2",
    b"1": "line 2 of .* has 1 cells, the titles are 2",
    "1,é".encode("latin-1"): "line 2 of .* is no UTF-8 text",
}


@pytest.mark.parametrize("row", ODD_ROWS)
def test_a_row_that_can_be_read_in_two_ways_is_refused_or_passed_over(tmp_path: Path, row: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + row + b"\n" + (b"2,sound\n" if b"never" not in row else b""))
    with pytest.raises(InputError, match=ODD_ROWS[row]):
        _read(path)
    skipped = Skipped(lambda: True)
    assert _read(path, skipped) == (["sound"] if b"never" not in row else [])
    assert skipped.counts.total() == 1


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.lists(parts, max_size=8).map("".join), max_size=4).map(",".join))
def test_a_row_is_misquoted_where_the_strict_reader_refuses_it(row: str) -> None:
    rows = tables.Rows(iter(io.StringIO(row, newline="")), ",")
    refused = False
    try:
        next(rows.reader, None)
    except csv.Error:
        refused = True
    place = rows.misquoted()
    assert (place is not None) == refused
    if place is not None:
        line, column = place
        assert len(rows.lines[line]) >= column


def test_an_unquoted_row_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b'text\tid\n"Hello he said\t1\nsecond "row"\t2\nthird\t3\n')
    with pytest.raises(InputError, match=r"line 2 of .* is no row of CSV: '\\t' expected after"):
        _read(path)


def test_blank_lines_and_cells_that_are_not_read_refuse_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\n\nauthor,text\né,first\n\ne,second\n".encode("latin-1"))
    assert _read(path) == ["first", "second"]


@pytest.mark.parametrize("content", (b"", b"\n\n"))
def test_a_table_without_titles_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{path} has no titles: the first row of a CSV file names its columns"):
        _read(path)


def _bytes_as_text(values: list[bytes]) -> pa.Array:
    _, offsets, data = pa.array(values, pa.binary()).buffers()
    return pa.Array.from_buffers(pa.string(), len(values), [None, offsets, data])


def _as_parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def _as_arrow(table: pa.Table, path: Path) -> Path:
    with pa.ipc.new_stream(str(path.with_suffix(".arrow")), table.schema) as writer:
        writer.write_table(table)
    return path.with_suffix(".arrow")


@pytest.mark.parametrize("write", (_as_parquet, _as_arrow))
def test_a_text_that_is_no_utf_8_is_told_with_its_file(tmp_path: Path, write: Callable[[pa.Table, Path], Path]) -> None:
    path = write(pa.table({"text": _bytes_as_text([b"a", b"\xff", b"b"])}), tmp_path / "a")
    with pytest.raises(InputError, match=f"a row of {path} is no UTF-8 text"):
        _read(path)
    skipped = Skipped(lambda: True)
    assert _read(path, skipped) == ["a", "b"] and skipped.counts.total() == 1


@pytest.mark.parametrize("write", (_as_parquet, _as_arrow))
@pytest.mark.parametrize("name", ("text", "tokens"))
def test_a_column_that_is_there_twice_is_refused(
    tmp_path: Path, write: Callable[[pa.Table, Path], Path], name: str
) -> None:
    column = pa.array(["a"]) if name == "text" else pa.array([[1]])
    path = write(pa.Table.from_arrays([column, column], names=[name, name]), tmp_path / "a")
    with pytest.raises(InputError, match=f"a.* has 2 columns {name}: rename all but one"):
        _read(path)
    if name == "tokens" and path.suffix == ".parquet":
        with pytest.raises(ValueError, match="has 2 columns tokens: rename all but one"):
            footer.read_footer(path)


def test_a_title_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,text\na,b\n")
    with pytest.raises(InputError, match=r"a\.csv has 2 columns text: rename all but the one"):
        _read(tmp_path / "a.csv")
