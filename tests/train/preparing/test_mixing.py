"""Mixtures of prepared folders: shares by tokens, whole documents in their order, an order fixed by the seed."""

import collections
from pathlib import Path

import pytest

import platform.prepare as prepare
from platform.common.errors import InputError
from platform.search.__main__ import parse
from platform.train.data_path import data_path
from platform.train.token_files import content_of
from tests.train.preparing.corpus import contents, documents_of, texts
from trainers.data import ParquetTokens
from trainers.data.index import read_index


def _folder(tmp_path: Path, name: str, count: int, seed: int) -> Path:
    """Returns a prepared folder whose documents begin with its name."""
    source = tmp_path / f"{name}.txt"
    source.write_text("\0".join(f"{name}{text}" for text in texts(count, seed)))
    out = tmp_path / name
    assert prepare.main([str(source), "--separator", "\0", "--out", str(out), "--workers", "1"]) == 0
    return out


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return _folder(tmp_path, "a", 400, 1), _folder(tmp_path, "b", 900, 2)


def _mixed(out: Path, *parts: str, seed: int = 0) -> Path:
    assert prepare.main([*parts, "--out", str(out), "--seed", str(seed)]) == 0
    return out


def test_tokens_have_the_shares_and_documents_their_order(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    a, b = folders
    out = _mixed(tmp_path / "mixed", f"{a}:3", f"{b}:1")
    documents = documents_of(out)
    tokens = collections.Counter[str]()
    for document in documents:
        tokens[chr(document[0])] += len(document)
    assert tokens["a"] / tokens.total() == pytest.approx(0.75, abs=0.02)
    for name, folder in (("a", a), ("b", b)):
        of_source = [document for document in documents if document[0] == ord(name)]
        assert of_source == documents_of(folder)[: len(of_source)], "each once, whole, in its folder's order"
    assert len(documents_of(a)) - sum(document[0] == ord("a") for document in documents) < 5, "the first one ends it"
    index = read_index(out)
    assert index is not None and index.mixture == {str(a): 0.75, str(b): 0.25}
    assert index.tokens == tokens.total() and index.documents == len(documents)


def test_the_seed_fixes_the_order_and_the_mixture_is_other_data(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    parts = [f"{folder}:0.5" for folder in folders]
    first, again = _mixed(tmp_path / "first", *parts), _mixed(tmp_path / "again", *parts)
    assert contents(first) == contents(again)
    other, weights = (
        _mixed(tmp_path / "other", *parts, seed=1),
        _mixed(tmp_path / "weights", parts[0], f"{folders[1]}:1"),
    )
    keys = {
        str(content_of(ParquetTokens(path, vocab_size=256, seq_len=64, global_batch=1), verify=True).key)
        for path in (first, again, other, weights, *folders)
    }
    assert len(keys) == 5


def test_a_mixture_that_was_begun_differently_is_refused(
    tmp_path: Path, folders: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = folders
    out = _mixed(tmp_path / "mixed", f"{a}:1", f"{b}:1")
    assert prepare.main([f"{a}:1", f"{b}:1", "--out", str(out)]) == 0, "the same command changes nothing"
    for arguments, sentence in (
        ([f"{a}:1", f"{b}:2"], "was begun with different mixture"),
        ([f"{a}:1", str(b)], "a mixture has a weight behind each of its folders, as in a:0.7 b:0.3"),
        ([f"{a}:1", f"{a}:1"], "a mixture has each folder once"),
        ([f"{a}:0", f"{b}:1"], "a weight above 0"),
        ([f"{tmp_path}:1", f"{b}:1"], "needs a folder that platform.prepare made"),
    ):
        capfd.readouterr()
        assert prepare.main([*arguments, "--out", str(out)]) == 2
        assert sentence in capfd.readouterr().err.splitlines()[-1]


def test_a_mixture_is_made_where_a_search_or_training_names_it(
    tmp_path: Path, folders: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = folders
    path = Path(data_path(f"{a}:3  {b}:1"))
    assert documents_of(path) == documents_of(_mixed(tmp_path / "mixed", f"{a}:3", f"{b}:1"))
    assert path.parent == a.parent and str(path) in capfd.readouterr().err
    before = contents(path)
    parsed = parse(["gpt2", "--data", f"{a}:0.75 {b}:0.25"])
    assert parsed.study.data == str(path), "the same shares are the same data"
    assert contents(path) == before and "Mixes" not in capfd.readouterr().err
    assert data_path(f"{a}:1 {b}:1") != str(path)
    assert data_path("included") == "included" and data_path("stream") == "stream"
    assert data_path(str(a)) == str(a) and data_path("no such:1") == str(Path("no such:1").absolute())
    assert data_path("runs:old of:ann") == str(Path("runs:old of:ann").absolute()), "no word has a weight"
    moved = a.parent.rename(a.parent.with_name("moved"))
    assert data_path(f"{moved / a.name}:3 {moved / b.name}:1") == str(moved / path.name), "it moved with them"
    a, b = moved / a.name, moved / b.name
    with pytest.raises(InputError, match="a weight behind each"):
        data_path(f"{a}:1 {tmp_path}/none:x")
