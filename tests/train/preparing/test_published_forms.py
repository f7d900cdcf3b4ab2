"""Corpora in the forms in which they are published: compressed, as CSV, as Arrow of `datasets`, as raw token ids; and
documents that cannot be read.
"""

import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import platform.prepare as prepare
from tests import needs
from tests.train.preparing.corpus import as_bytes, contents, documents_of, texts
from trainers.data.index import read_index

TEXTS = texts(60)


def _zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def _lines(documents: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()


def _prepared(tmp_path: Path, *arguments: object, out: str = "out") -> Path:
    folder = tmp_path / out
    assert prepare.main([*map(str, arguments), "--out", str(folder), "--workers", "2"]) == 0
    return folder


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("c4-train.00000-of-01024.json.gz", gzip.compress),
        ("shard_0.jsonl.zst", _zstd),
        ("part.JSONL.ZST", _zstd),
        ("two-members.jsonl.gz", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
        ("PLAIN.JSONL", lambda data: data),
    ],
)  # fmt: skip
def test_lines_are_the_same_however_they_are_packed(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / name).write_bytes(pack(_lines(TEXTS)))
    assert documents_of(_prepared(tmp_path, source)) == as_bytes(TEXTS)


def test_files_of_the_zstd_command_are_read(tmp_path: Path) -> None:
    needs.tools(["zstd"], "zstd")
    path = tmp_path / "a.jsonl"
    path.write_bytes(_lines(TEXTS))
    subprocess.run(["zstd", "-q", "-19", "--rm", path], check=True)
    assert documents_of(_prepared(tmp_path, tmp_path / "a.jsonl.zst")) == as_bytes(TEXTS)


def test_compressed_text_is_divided_as_plain_text(tmp_path: Path) -> None:
    text = "\r\n\r\n".join(f"paragraph {number}" for number in range(40)).encode()
    (tmp_path / "a.TXT").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    plain = _prepared(tmp_path, tmp_path / "a.TXT", "--separator", r"\n\n", out="plain")
    packed = _prepared(tmp_path, tmp_path / "b.txt.gz", "--separator", r"\n\n", out="packed")
    assert documents_of(plain) == documents_of(packed) == as_bytes([f"paragraph {number}" for number in range(40)])
    assert documents_of(_prepared(tmp_path, tmp_path / "b.txt.gz", out="whole")) == as_bytes([text.decode()])


def test_csv_is_read_by_its_column(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(60)), "body": TEXTS})
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for name in ("a.csv", "b.csv.gz"):
        out = _prepared(tmp_path, tmp_path / name, "--text-key", "body", out=f"out-{name}")
        assert documents_of(out) == as_bytes(TEXTS)


@pytest.mark.parametrize("is_stream", (True, False))
@pytest.mark.parametrize("column", ({"text": TEXTS}, {"input_ids": [[1, 2, 3], [400, 5]]}))
def test_arrow_files_are_read_in_both_forms(tmp_path: Path, is_stream: bool, column: dict[str, Any]) -> None:
    """Writes a folder as `save_to_disk` of `datasets` leaves it."""
    folder = tmp_path / "saved"
    folder.mkdir()
    table = pa.table(column)
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with new(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    shutil.copy(folder / "data-00000-of-00001.arrow", folder / "cache-1f0c.arrow")
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text("{}")
    (values,) = column.values()
    assert documents_of(_prepared(tmp_path, folder)) == (as_bytes(values) if "text" in column else values)


@pytest.mark.parametrize("kind", ("uint16", "int32", "uint32", "int64"))
def test_raw_ids_are_read_by_their_stated_type(tmp_path: Path, kind: str) -> None:
    documents = [[1, 2, 3, 50], [4, 50], [5, 6, 7]]
    ids = np.array([token for document in documents for token in document], kind)
    ids.tofile(tmp_path / "train.bin")
    raw = _prepared(tmp_path, tmp_path / "train.bin", "--raw-ids", f"{kind}:50")
    assert documents_of(raw) == documents
    rows = _prepared(tmp_path, tmp_path / "train.bin", "--raw-ids", kind, out="rows")
    assert documents_of(rows) == [[token for document in documents for token in document]]


def test_the_header_of_llm_c_is_no_token(tmp_path: Path) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 4
    (tmp_path / "train.bin").write_bytes(header.tobytes() + np.array([1, 2, 3, 4], np.uint16).tobytes())
    assert documents_of(_prepared(tmp_path, tmp_path / "train.bin", "--raw-ids", "uint16")) == [[1, 2, 3, 4]]


def test_bad_documents_are_passed_over_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"text": text}) for text in TEXTS[:4]]
    bad = ['{"text": null}', "3", '{"text": "\\ud800"}', '{"text": null}', '{"text": "cut']
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], bad[0], lines[1], *bad[1:4], lines[2], lines[3], bad[4]]))
    out = _prepared(tmp_path, tmp_path / "a.jsonl", "--skip-bad", "5")
    assert documents_of(out) == as_bytes(TEXTS[:4])
    index = read_index(out)
    assert index is not None
    assert index.skipped == {
        'no text at "text"': 2, "not a JSON object": 1, "half of a surrogate pair": 1, "not JSON": 1,
    }  # fmt: skip
    shown = capfd.readouterr().err
    assert 'Passed over 2: no text at "text"; the first: "text" in line 2 of' in shown
    assert "Passed over 1: not JSON; the first: line 9 of" in shown
    assert not [name for name in contents(out) if name.startswith(".skipped")]


def test_one_bad_document_too_many_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n1\n2\n')
    arguments = [str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert prepare.main(arguments) == 2
    assert "line 2 of" in capfd.readouterr().err.splitlines()[-1]
    assert prepare.main([*arguments, "--skip-bad", "1"]) == 2
    assert "line 3 of" in capfd.readouterr().err.splitlines()[-1]
    assert prepare.main([*arguments, "--skip-bad", "2"]) == 0, "the same folder goes on"


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.txt", "text".encode("utf-16"), "is UTF-16 text, and UTF-8 is read: iconv -f UTF-16 -t UTF-8"),
        ("a.jsonl", '{"text": 1}'.encode("utf-16-le"), "is UTF-16 text"),
        ("a.txt", "text".encode("utf-32"), "is UTF-32 text, and UTF-8 is read: iconv -f UTF-32 -t UTF-8"),
        ("a.json", json.dumps([{"text": "a"}]).encode(), "is one JSON array: write it as JSON lines"),
        ("a.json", json.dumps({"text": "a"}, indent=2).encode(), "is pretty-printed JSON, an object over"),
        ("a.csv", b"id,body\n1,a\n", "has no column text, its columns are id, body: --text-key names another"),
        ("a.arrow", b"not arrow", "is no Arrow file, or is cut short"),
        ("train.bin", b"\1\0\2\0", "has no .idx beside it, as a Megatron pair has: token ids alone want the type"),
        ("a.jsonl.gz", b"not gzip", "cannot read"),
        ("a.jsonl.gz", gzip.compress(_lines(TEXTS))[:-200], "cannot read"),
        ("a.parquet.gz", b"", "the kind of"),
    ],
)  # fmt: skip
def test_what_a_file_is_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(data)
    assert prepare.main([str(tmp_path / name), "--out", str(tmp_path / "out"), "--workers", "1"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and sentence in last


def test_the_command_for_utf_16_makes_what_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needs.tools(["iconv"], "libc-bin")
    path = tmp_path / "a.txt"
    path.write_text("gämma", encoding="utf-16")
    assert prepare.main([str(path), "--out", str(tmp_path / "out")]) == 2
    command = capfd.readouterr().err.splitlines()[-1].partition("UTF-8 is read: ")[2].removesuffix(" makes it")
    output = subprocess.run(command, shell=True, check=True, capture_output=True).stdout
    path.write_bytes(output)
    assert documents_of(_prepared(tmp_path, path)) == as_bytes(["gämma"])


@pytest.mark.parametrize("text", ("float32", "uint16:", "uint16:x", ""))
def test_a_type_of_raw_ids_is_an_integer_s(tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "a.bin").write_bytes(b"\1\0")
    assert prepare.main([str(tmp_path / "a.bin"), "--out", str(tmp_path / "out"), f"--raw-ids={text}"]) == 2
    assert "--raw-ids states the integers' type, one of uint8" in capfd.readouterr().err.splitlines()[-1]
