"""`platform.prepare` reads data alone, of one kind and one split, each file once, and says so before it begins."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import platform.train.preparing.command as prepare
from tests.train.preparing.corpus import as_bytes, documents_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def write(folder: Path, *names: str) -> None:
    """Writes files, each with its own name as its text."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Returns the exit code of the command, and what it printed, in one line."""
    code = prepare.main([*map(str, arguments), "--workers", "1"])
    return code, " ".join(capsys.readouterr().err.split())


def read(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Returns the documents that are made of a folder, and what was told."""
    code, output = run(capsys, folder, "--out", folder.parent / "out")
    assert code == 0, output
    return [bytes(ids).decode() for ids in documents_of(folder.parent / "out")], output


def test_what_is_about_the_data_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "a.txt", "b/c.txt")
    about = ("README.md", "b/readme.txt", "LICENSE.txt", "license-mit.md", ".cache/x.txt", "b/.hidden.txt",
             ".ipynb_checkpoints/a-checkpoint.txt", "b/c-checkpoint.txt", "dataset_infos.json", "tokenizer.json",
             "config.json")  # fmt: skip
    write(folder, *about)
    documents, output = read(folder, capsys)
    assert documents == ["a.txt", "b/c.txt"]
    assert "Reads 2 files of text, 0.0 MiB: a.txt, c.txt Leaves out 11 files: " in output


def test_what_is_named_is_read_whatever_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "README.md")
    assert run(capsys, folder / "README.md", "--out", folder.parent / "out")[0] == 0
    assert documents_of(folder.parent / "out") == as_bytes(["README.md"])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("a.txt", "b.jsonl"), "holds files of several kinds: 1 of text (a.txt), 1 of json lines (b.jsonl): name"),
        (("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"),
         "several splits: 1 of test (test-0.jsonl), 2 of train (train-0.jsonl): name the files or the folder"),
        (("train/a.txt", "validation/a.txt"), "several splits: 1 of train (train/a.txt), 1 of validation"),
    ],
)  # fmt: skip
def test_several_kinds_or_splits_ask_for_a_choice(
    names: Sequence[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, *names)
    code, output = run(capsys, folder, "--out", folder.parent / "out")
    assert code == 2 and sentence in output
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("names", [("training.txt", "latest.txt", "contest.txt"), ("test/a.txt", "test/b.txt")])
def test_other_words_and_one_split_need_none(
    names: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, *names)
    assert sorted(read(folder, capsys)[0]) == sorted(names)


def test_each_file_counts_once_by_whatever_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "a.txt")
    write(folder.parent, "blob")
    os.link(folder / "a.txt", folder / "hard.txt")
    (folder / "soft.txt").symlink_to(folder / "a.txt")
    (folder / "z.txt").symlink_to(folder.parent / "blob")  # as the hub's cache has its files
    assert read(folder, capsys)[0] == ["a.txt", "blob"]
    code, output = run(capsys, folder / "a.txt", folder / "soft.txt", "--out", folder.parent / "other")
    assert code == 2 and "soft.txt is named twice" in output


@pytest.mark.parametrize("separator", [r"\n", r"\n\n", "b\\n"])
def test_a_text_with_the_other_line_ends_is_cut_alike(
    separator: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "a b\nc\n\nd\n\n\ne b\n"
    documents: list[list[str]] = []
    for name, ends in (("unix", text), ("windows", text.replace("\n", "\r\n"))):
        write(folder, f"{name}.txt")
        (folder / f"{name}.txt").write_bytes(ends.encode())
        out = folder.parent / name
        assert run(capsys, folder / f"{name}.txt", "--separator", separator, "--out", out)[0] == 0
        documents.append([bytes(ids).decode().replace("\r\n", "\n") for ids in documents_of(out)])
    assert documents[0] == documents[1] and len(documents[0]) > 1


def test_an_option_without_effect_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "a.txt")
    _, output = run(capsys, folder / "a.txt", "--text-key", "body", "--out", folder.parent / "a")
    assert "--text-key body has no effect: no input has keys or columns of text" in output
    _, output = run(capsys, folder / "a.txt", "--separator", "<end>", "--out", folder.parent / "b")
    assert "--separator '<end>' divides no file: each is one document" in output
    (folder / "b.jsonl").write_text('{"text": "x"}')
    _, output = run(capsys, folder / "b.jsonl", "--separator", "<end>", "--out", folder.parent / "c")
    assert "--separator has no effect: no input is a text file" in output
