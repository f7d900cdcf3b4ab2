"""Input that `platform.prepare` cannot read ends it with exit code 2 and one sentence, before or while it works."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import platform.train.preparing.command as prepare
from platform.common.errors import InputError
from platform.train.preparing import inputs
from platform.train.preparing.documents import documents
from platform.train.preparing.tokenizer import BYTES, Tokenizer
from tests.train.preparing.corpus import write_megatron
from trainers.data import ParquetTokens
from trainers.data.index import NAME

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs the command in an empty folder and returns its sentence."""
    monkeypatch.chdir(tmp_path)

    def refused(*arguments: object) -> str:
        assert prepare.main(["--workers", "1", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        last = captured.err.splitlines()[-1]
        assert captured.out == "" and last.startswith("error: ") and "Traceback" not in captured.err
        assert not Path("out", NAME).exists()
        return last

    return refused


def _read(path: Path, separator: bytes | None = None) -> None:
    """Reads all documents of a file as a worker does."""
    encode = Tokenizer(name=BYTES, vocab_size=256).encoder()
    for shard in inputs.shards(inputs.find([path], path.parent / "out", "text").files, 2**20, separator):
        for piece in shard.pieces:
            for _ in documents(piece, encode=encode, text_key="text", separator=separator):
                pass


def _changed(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def test_inputs_that_cannot_be_found_or_told(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pdf").write_text("")
    (tmp_path / "a.txt").write_text("text")
    assert "there is no input" in refused("missing.txt", "--out", "out")
    assert "in holds no file of data with a suffix .txt" in refused("in", "--out", "out")
    assert "its suffix must be one of .txt" in refused("in/a.pdf", "--out", "out")
    assert "a.txt is named twice" in refused("a.txt", "./a.txt", "--out", "out")
    assert "lies in the input folder" in refused(tmp_path, "--out", "out")
    assert "--workers must be at least 1, got -1" in refused("a.txt", "--out", "out", "--workers", -1)
    assert "--shard-mib must be at least 1, got 0" in refused("a.txt", "--out", "out", "--shard-mib", 0)
    assert "--separator must not be empty" in refused("a.txt", "--out", "out", "--separator", "")


def test_folders_that_are_not_this_runs(refused: Refused, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("")
    assert "holds other files, such as notes" in refused("a.txt", "--out", "full")
    assert "cannot be made" in refused("a.txt", "--out", "a.txt/out")
    assert prepare.main(["a.txt", "--out", "done"]) == 0
    capsys.readouterr()
    assert "was begun with different separator" in refused("a.txt", "--out", "done", "--separator", "x")
    (tmp_path / "a.txt").write_text("changed")
    assert "was begun with different inputs" in refused("a.txt", "--out", "done")


def test_an_input_without_a_token(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert "every document of the input is empty" in refused("a.txt", "--out", "out")
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_tokenizer_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    output = refused("a.txt", "--out", "out", "--tokenizer", "gpt2")
    assert "--tokenizer must be bytes or a folder that holds a tokenizer, got gpt2" in output
    assert "cannot read a tokenizer in" in refused("a.txt", "--out", "out", "--tokenizer", "empty")
    pq.write_table(pa.table({"tokens": [[1]]}), tmp_path / "a.parquet")
    assert "leave out --tokenizer" in refused("a.parquet", "--out", "out", "--tokenizer", "bytes")
    assert "prepare them one after the other" in refused("a.parquet", "a.txt", "--out", "out")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"text", "line 3 of .*a.jsonl is not JSON: "),
        (b'{"text": "a', "line 3 of .*a.jsonl is not JSON: "),
        (b'["text"]', "line 3 of .*a.jsonl is not a JSON object"),
        (b'{"body": "a"}', 'line 3 of .*a.jsonl has no key "text", its keys: body; --text-key names another'),
        (b'{"text": 3}', '"text" in line 3 of .*a.jsonl must be text, got 3'),
        (b'{"text": "\\ud800"}', "holds half of a surrogate pair"),
        (b'{"text": "\xff"}', "line 3 of .*a.jsonl is not JSON: .*utf-8"),
    ],
)
def test_a_line_that_is_no_document(tmp_path: Path, line: bytes, sentence: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=sentence):
        _read(tmp_path / "a.jsonl")


def test_a_refusal_of_a_worker_reaches_the_user(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}) + "\n{}\n")
    assert "line 2 of" in refused("a.jsonl", "--out", "out")
    (tmp_path / "b.json").write_text('[{"text": "a"}]')
    assert "is one JSON array" in refused("b.json", "--out", "out2")


def test_text_that_is_none_or_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr("platform.train.preparing.documents.MAX_DOCUMENT_BYTES", 100)
    text = tmp_path / "a.txt"
    text.write_bytes(b"ab\xffcd")
    with pytest.raises(InputError, match="is no UTF-8 text: byte 2 is invalid start byte"):
        _read(text)
    text.write_text("x" * 101)
    with pytest.raises(InputError, match=r"is one document of .* --separator names the text between"):
        _read(text)
    with pytest.raises(InputError, match="is longer than"):
        _read(text, separator=b"\n")
    pq.write_table(pa.table({"text": ["x" * 101]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a row of .* holds 101 characters"):
        _read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"body": ["a"]}, "has no column text with text nor tokens or input_ids with token ids; its columns are body"),
        ({"text": [1]}, "column text of .* must hold text, got int64: --text-key names another"),
        ({"tokens": [1, 2]}, "so where a document ends is not known: --data reads it as it is"),
        ({"tokens": [["a"]]}, "must hold lists of integers, got lists of string"),
        ({"tokens": [[1, -2]]}, "holds the negative id -2"),
        ({"tokens": [[1, None]]}, "has empty places among its token ids"),
        ({"tokens": [[2**31]]}, "holds a value that cannot be a token id"),
    ],
)
def test_parquet_without_documents(tmp_path: Path, columns: dict[str, object], sentence: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=sentence):
        _read(tmp_path / "a.parquet")


def test_parquet_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("text")
    with pytest.raises(InputError, match=r"cannot read .*a\.parquet as Parquet"):
        _read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("part", "change", "sentence"),
    [
        (".idx", lambda data: data.__setitem__(0, 0), "does not begin with MMIDIDX"),
        (".idx", lambda data: data.__setitem__(9, 2), "is of version 2 with type code 8"),
        (".idx", lambda data: data.__setitem__(17, 7), "holds float32: token ids are integers"),
        (
            ".idx",
            lambda data: data.__delitem__(slice(-1, None)),
            "is cut short: it has 93 bytes, its header asks for 94",
        ),
        (
            ".idx",
            lambda data: data.__setitem__(slice(-8, None), struct.pack("<q", 2)),
            "documents are not all of its 3",
        ),
        (
            ".idx",
            lambda data: data.__setitem__(slice(-16, -8), struct.pack("<q", 9)),
            "documents' bounds do not ascend",
        ),
        (".idx", lambda data: data.__setitem__(slice(34, 38), struct.pack("<i", -1)), "length or place is impossible"),
        (".idx", lambda data: data.__setitem__(46, 3), "length or place is impossible"),
        (".bin", lambda data: data.__delitem__(slice(-2, None)), "is cut short: it has 5 tokens, set.idx asks for 6"),
    ],
)
def test_a_damaged_megatron_pair(tmp_path: Path, part: str, change: Callable[[bytearray], None], sentence: str) -> None:
    pair = write_megatron(tmp_path / "set.bin", [[[1, 2], [3]], [[4, 5, 6]]])
    _changed(pair.with_suffix(part), change)
    with pytest.raises(InputError, match=sentence):
        _read(pair)


def test_half_a_megatron_pair_and_negative_ids(tmp_path: Path) -> None:
    pair = write_megatron(tmp_path / "set.bin", [[[1, -2]]], "int32")
    with pytest.raises(InputError, match="holds -2 to 1, and token ids lie in 0"):
        _read(pair)
    pair.with_suffix(".idx").unlink()
    with pytest.raises(InputError, match=r"and there is no .*\.bin|has no \.idx beside it"):
        _read(pair)


def test_an_index_that_does_not_fit_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0123456789")
    out = tmp_path / "out"
    assert prepare.main([str(tmp_path / "a.txt"), "--out", str(out)]) == 0
    index = (out / NAME).read_text()

    def sentence(text: str) -> str:
        (out / NAME).write_text(text)
        with pytest.raises(ValueError) as error:
            ParquetTokens(out, vocab_size=256, seq_len=4, global_batch=1).sequences(0, [0])
        return str(error.value)

    assert "holds 10 tokens, the index beside it says 11" in sentence(index.replace('"tokens": 10', '"tokens": 11'))
    assert "has format 2, this version reads format 1" in sentence(index.replace('"format": 1', '"format": 2'))
    assert "is no index of token files" in sentence(index[:-20])
    (out / "tokens-000000.parquet").unlink()
    assert "cannot be read" in sentence(index)


@pytest.mark.parametrize(
    "arguments",
    [("~nouser/in", "--out", "out"), ("in.txt", "--out", "~nouser/out"), ("in.txt", "--tokenizer", "~nouser/t")],
)
def test_the_home_of_an_unknown_user(refused: Refused, arguments: tuple[str, ...]) -> None:
    Path("in.txt").write_text("text")
    out = () if "--out" in arguments else ("--out", "out")
    assert "no home folder is known for '~nouser/" in refused(*arguments, *out)
