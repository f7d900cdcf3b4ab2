"""Token files hold the same when a training is resumed as when it began, or it is refused with the difference."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import platform.train.preparing.command as prepare
from platform.common.errors import InputError
from platform.train.token_files import checked_content, content_of
from platform.train.training_folder import TrainingFolder
from tests.training.values import plan
from trainers.data import ParquetTokens
from trainers.data.index import read_index
from trainers.records.data_content import DataContent


def source(folder: Path) -> ParquetTokens:
    return ParquetTokens(folder, vocab_size=256, seq_len=16, global_batch=4)


def written(folder: Path, count: int = 4000, seed: int = 0) -> Path:
    """Writes plain Parquet files, without an index."""
    folder.mkdir(exist_ok=True)
    for number in range(2):
        ids = [(seed + number + place * place) % 251 for place in range(count)]
        table = pa.table({"tokens": [ids]})
        pq.write_table(table, folder / f"{number}.parquet", compression="none", use_dictionary=False)
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.txt").write_text("".join(chr(97 + place * place % 23) for place in range(9000)))
    assert prepare.main([str(folder / "a.txt"), "--out", str(folder / "tokens"), "--workers", "1"]) == 0
    return folder / "tokens"


def test_the_index_has_the_hash_of_what_was_written(prepared: Path) -> None:
    index = read_index(prepared)
    assert index is not None
    content = content_of(source(prepared), verify=True)  # reads all of it, and compares
    assert [(file.name, file.size_bytes, file.sha256) for file in index.files] == [
        (file.name, file.size_bytes, file.sha256) for file in content.files
    ]
    assert content.is_hashed and content_of(source(prepared), verify=False).is_hashed
    assert (content.tokens, content.vocab_size, content.end_of_document) == (9000, 256, None)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def _another_end(folder: Path) -> None:
    written(folder, count=4001)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "other tokens": (lambda folder: written(folder, seed=7), "of 16 blocks that were compared hold other bytes"),
    "more tokens": (_another_end, "8,002 tokens in place of 8,000"),
    "a file more": (
        lambda folder: pq.write_table(pa.table({"tokens": [[1]]}), folder / "2.parquet"), "3 files in place of 2"
    ),
    "a file fewer": (lambda folder: (folder / "1.parquet").unlink(), "1 files in place of 2"),
    "renamed": (lambda folder: (folder / "0.parquet").rename(folder / "9.parquet"), "1.parquet in place of 0.parquet"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_other_files_are_refused_with_the_difference(kind: str, tmp_path: Path) -> None:
    change, sentence = CHANGES[kind]
    folder = written(tmp_path / "data")
    before = checked_content(source(folder), None, verify=False)
    assert checked_content(source(folder), before, verify=False) == before
    change(folder)
    with pytest.raises(InputError, match="holds other data than when the training began") as refused:
        checked_content(source(folder), before, verify=False)
    assert sentence in str(refused.value)


def test_files_that_were_written_since_are_compared_whole_where_hashes_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "data", count=400_000)
    before = checked_content(source(folder), None, verify=True)
    os.utime(folder / "1.parquet")
    later = checked_content(source(folder), before, verify=False)
    output = " ".join(capsys.readouterr().err.split())
    assert "were written since the training began: all of them are compared" in output
    assert later.key == before.key and later != before
    data, places = (folder / "1.parquet").read_bytes(), []
    for place in range(100_000, len(data) - 100_000, 50_000):  # a byte that no block has
        _flip(folder / "1.parquet", place)
        if content_of(source(folder), verify=False).block_sha256 == before.block_sha256:
            places.append(place)
            break
        (folder / "1.parquet").write_bytes(data)
    assert places
    with pytest.raises(InputError, match=r"1\.parquet holds other bytes"):
        checked_content(source(folder), later, verify=False)


def test_all_bytes_are_compared_with_the_index_on_request(prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    for path in prepared.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (file,) = folder.glob("*.parquet")
    _flip(file, 40)
    with pytest.raises(InputError, match=r"holds other bytes since platform\.prepare wrote it"):
        content_of(source(folder), verify=True)
    with file.open("ab") as appended:
        appended.write(b"x")
    with pytest.raises((InputError, ValueError), match=r"in place of|Parquet"):
        content_of(source(folder), verify=False)


def test_a_training_goes_on_where_the_same_files_were_moved(tmp_path: Path) -> None:
    content = content_of(source(written(tmp_path / "data")), verify=False)
    moved = content_of(source(written(tmp_path / "elsewhere")), verify=False)
    other = content_of(source(written(tmp_path / "other", seed=3)), verify=False)
    folder = TrainingFolder(tmp_path / "training")
    folder.path.mkdir()
    folder.write_plan(plan(data_content=None))
    folder.write_plan(plan(data_content=content))  # of a version that did not look

    def at(path: str, held: DataContent) -> Any:
        first = plan(data_content=held)
        return dataclasses.replace(first, recipe=dataclasses.replace(first.recipe, data=str(tmp_path / path)))

    folder.write_plan(at("elsewhere", moved))
    with pytest.raises(InputError, match=r"\(the data differ\)"):
        folder.write_plan(at("other", other))
