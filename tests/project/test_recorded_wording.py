"""Recorded sentences: each belongs to a test, and a changed one is seen."""

from pathlib import Path

import pytest

from tests.wording import FOLDER, Wording, read

TESTS = Path(__file__).parents[1]


def test_each_recorded_sentence_belongs_to_a_test() -> None:
    files = sorted(TESTS.rglob(f"{FOLDER}/*.json"))
    assert files
    for path in files:
        source = (path.parents[1] / f"{path.stem}.py").read_text("utf-8")
        lost = [name for name in read(path) if f"def {name.partition('[')[0].split('::')[-1]}(" not in source]
        assert not lost, f"{path.name} has sentences of tests that are gone: {lost}"


def test_a_changed_sentence_is_seen_until_it_is_recorded_anew(tmp_path: Path) -> None:
    module = tmp_path / "test_some.py"
    with pytest.raises(AssertionError, match="--regenerate-golden"):
        Wording(module, "test_one", regenerates=False)("first")
    record = Wording(module, "test_one", regenerates=True)
    record("first")
    record("second")
    compare = Wording(module, "test_one", regenerates=False)
    compare("first")
    with pytest.raises(AssertionError, match="--regenerate-golden"):
        compare("another")
    Wording(module, "test_two", regenerates=True)("third")
    assert read(tmp_path / FOLDER / "test_some.json") == {"test_one": ["first", "second"], "test_two": ["third"]}
