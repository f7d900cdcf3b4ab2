"""Inputs at addresses: a bucket of S3 on a server of moto's, and addresses that are refused in a sentence."""

import gzip
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import platform.train.preparing.command as prepare
from platform.common.places import InputPath, input_path
from tests.buckets import s3_bucket
from tests.train.preparing import data_hub
from tests.train.preparing.corpus import as_bytes, documents_of, texts, write_megatron
from trainers.data.index import read_index

TEXTS = texts(40)


def _files(folder: Path) -> dict[str, Path]:
    """Writes the same documents in each form that is read from afar; returns the files by their keys."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    table = pa.table({"text": TEXTS})
    for name in ("lines", "packed", "parquet", "arrow", "csv", "text"):
        (folder / name).mkdir(parents=True)
    (folder / "lines/train-0.jsonl").write_bytes(lines)
    (folder / "packed/train-0.json.gz").write_bytes(gzip.compress(lines))
    pq.write_table(table, folder / "parquet/train-0.parquet", row_group_size=7)
    with pyarrow.ipc.new_stream(folder / "arrow/data-0.arrow", table.schema) as stream:
        stream.write_table(table)
    pyarrow.csv.write_csv(table, folder / "csv/train-0.csv")
    (folder / "text/all.txt").write_bytes("\x01".join(TEXTS).encode())
    (folder / "lines/README.md").write_text("about")
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Yields a folder whose files lie in the bucket "corpus" too."""
    folder = tmp_path_factory.mktemp("files")
    files = {f"set/{key}": path for key, path in _files(folder).items()}
    with s3_bucket("corpus", {**files, "ids/train.bin": b"\1\0\2\0"}):
        yield folder


def _prepared(out: Path, *inputs: object, options: tuple[str, ...] = ()) -> Path:
    assert prepare.main([*map(str, inputs), "--out", str(out), "--workers", "1", *options]) == 0
    return out


@pytest.mark.parametrize("kind", ["lines", "packed", "parquet", "arrow", "csv", "text"])
def test_a_bucket_s_folder_gives_what_its_files_give(
    bucket: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks it without a worker process for each: what a worker does is done here, as its bytes are another test's."""
    options = ("--separator", "\x01") if kind == "text" else ()
    if kind == "lines":
        far = _prepared(tmp_path / "far", f"s3://corpus/set/{kind}", options=options)
        index = read_index(far)
        assert index is not None and index.documents == len(TEXTS)
        assert documents_of(far) == as_bytes(TEXTS)
        assert "Leaves out 1 file: README.md" in capsys.readouterr().err
        assert json.loads((far / "plan.json").read_text())["inputs"][0]["path"] == "s3://corpus/set/lines/train-0.jsonl"
        return
    near, far = (_documents(root, options) for root in (bucket / kind, input_path(f"s3://corpus/set/{kind}/")))
    assert far == near == as_bytes(TEXTS)


def _documents(root: InputPath, options: tuple[str, ...]) -> list[list[int]]:
    """Returns the documents below `root` as a worker reads them."""
    from platform.train.preparing import inputs
    from platform.train.preparing.documents import documents
    from platform.train.preparing.tokenizer import BYTES, load

    separator = options[1].encode() if options else None
    encode = load(BYTES, with_end=False).encoder()
    read: list[list[int]] = []
    for shard in inputs.shards(inputs.find([root], Path("/nowhere"), "text").files, 2**12, separator):
        for piece in shard.pieces:
            for tokens, _ in documents(piece, encode=encode, text_key="text", separator=separator):
                ids = tokens.ids.tolist()
                bounds = [*tokens.document_starts.tolist(), len(ids)]
                read += [ids[begin:end] for begin, end in itertools.pairwise(bounds)]
    return read


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("s3://corpus/none", "there is no input s3://corpus/none"),
        ("s3://corpus/ids/train.bin", "s3://corpus/ids/train.bin holds bare token ids, .*: copy it here"),
        ("s3://key:secret@corpus/set", "an address holds no credentials, as that of corpus/set does"),
        ("zz://corpus/set", "zz://corpus is no file system that pyarrow opens"),
        ("s3://", "s3:// names no bucket"),
        ("file:///nowhere/at/all", "there is no input /nowhere/at/all"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(
    bucket: Path, address: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare.main([address, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert re.fullmatch(rf"error: {sentence}.*\n", printed, re.DOTALL) and "secret@" not in printed


def test_the_hub_s_addresses_lead_to_its_file_system() -> None:
    pytest.importorskip("huggingface_hub")
    path = input_path("hf://datasets/allenai/c4/en/c4-train.00000-of-01024.json.gz")
    file_system, inner = path._located()  # type: ignore[reportAttributeAccessIssue,reportPrivateUsage]
    assert "HfFileSystem" in type(file_system.handler.fs).__name__
    assert inner == "datasets/allenai/c4/en/c4-train.00000-of-01024.json.gz"
    assert (path.name, path.suffix) == ("c4-train.00000-of-01024.json.gz", ".gz")


def test_a_megatron_pair_of_this_machine_may_be_called_by_an_address(tmp_path: Path) -> None:
    write_megatron(tmp_path / "set.bin", [[[1, 2]], [[3]]])
    assert documents_of(_prepared(tmp_path / "out", f"file://{tmp_path}/set.bin")) == [[1, 2], [3]]


def test_a_data_set_of_the_hub_is_read_from_there(tmp_path: Path) -> None:
    """Checks it against a hub on this machine, in a process whose `huggingface_hub` is first imported there."""
    pytest.importorskip("huggingface_hub")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    files = {"README.md": b"about", "en/train-0.json.gz": gzip.compress(lines), "test/test-0.json": b'{"text": "no"}\n'}
    with data_hub.serving("acme/corpus", files) as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        for name, code in (("corpus/en", 0), ("none", 2)):
            command = [sys.executable, "-m", "platform.prepare", f"hf://datasets/acme/{name}", "--out", tmp_path / name]
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert run.returncode == code, run.stderr
    assert documents_of(tmp_path / "corpus/en") == as_bytes(TEXTS)
    assert (
        re.fullmatch(r"error: .*hf://datasets/acme/none.*\n", run.stderr, re.DOTALL) and "Traceback" not in run.stderr
    )
