"""The space of a function of the user's own: its axes, what identifies it, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.candidate import OWN
from search_spaces.function import space_of_function
from search_spaces.space import Space
from trainers.spec.codec import from_json, to_json
from trainers.spec.recipe import Recipe
from trainers.spec.workload import text_of, value_of

CODE = "def build(layout):\n    raise RuntimeError('it runs')\n"


def _space(folder: Path, *sets: str, build: str = "train.py:build", tokens: int = 1024, length: int = 16) -> Space:
    if not (folder / "train.py").exists():
        (folder / "train.py").write_text(CODE)
    return space_of_function(build, sets, folder=folder, tokens_per_step=tokens, seq_len=length)


def test_its_axes_are_a_product_and_micro_batches_double(tmp_path: Path) -> None:
    candidates, rejected = _space(tmp_path, "width=256,512", "mode=a,b").candidates(4)
    assert [candidate.layout.label for candidate in candidates] == [
        "width=256 mode=a", "width=256 mode=b", "width=512 mode=a", "width=512 mode=b",
    ]  # fmt: skip
    assert {candidate.micro_batches for candidate in candidates} == {(1, 2, 4, 8, 16)} and rejected == ()
    assert candidates[0].axes == {"recipe": candidates[0].recipe.id, f"{OWN}width": 256.0, f"{OWN}mode": "a"}
    listed, _ = _space(tmp_path, "micro_batch=8,2").candidates(4)
    assert [(candidate.layout.label, candidate.micro_batches) for candidate in listed] == [("as it stands", (2, 8))]


def test_its_file_and_name_identify_it(tmp_path: Path) -> None:
    first = _space(tmp_path, "width=1,2").recipe
    assert first.workload is not None and not first.command and not first.has_model
    assert from_json(Recipe, to_json(first)) == first and first.label == "train:build, length 16, global batch 64"
    assert _space(tmp_path, "width=3").recipe.id == first.id, "values of axes are layouts"
    (tmp_path / "elsewhere").mkdir()
    assert _space(tmp_path / "elsewhere").recipe.id == first.id
    (tmp_path / "train.py").write_text(CODE + "build_again = build\n")
    ids = {_space(tmp_path).recipe.id, _space(tmp_path, build="train.py:build_again").recipe.id, first.id}
    assert len(ids) == 3


BAD: dict[tuple[str, ...], str] = {
    ("width",): "--set needs NAME=VALUE,VALUE, got 'width'",
    ("a b=1",): "--set needs NAME=VALUE,VALUE, got 'a b=1'",
    ("width=1", "width=2"): "--set width is given twice",
    ("width=1,",): "axis width has an empty value, or one twice: '1,'",
    ("width=1,1",): "axis width has an empty value, or one twice",
    ("micro_batch=0",): "micro-batches are whole numbers of at least 1, got '0'",
}


@pytest.mark.parametrize("sets", BAD)
def test_axes_that_mean_nothing_are_refused(tmp_path: Path, sets: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as refused:
        _space(tmp_path, *sets)
    assert BAD[sets] in str(refused.value)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        ("train.py", "a function is named as FILE.py:NAME or MODULE:NAME, got 'train.py'"),
        ("train.py:a build", "a function is named as FILE.py:NAME or MODULE:NAME"),
        ("other.py:build", "other.py cannot be found from"),
        ("no.such.module:build", "no.such.module cannot be found from"),
        ("train.py:built", "has no function built"),
        ("broken.py:build", "broken.py is no Python"),
    ],
)
def test_functions_that_are_not_there_are_refused(tmp_path: Path, build: str, sentence: str) -> None:
    (tmp_path / "broken.py").write_text("def build(")
    with pytest.raises(ValueError, match=sentence):
        _space(tmp_path, build=build)


def test_a_length_that_divides_no_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--tokens-per-step 1000 is no multiple of the 16 tokens of a sequence"):
        _space(tmp_path, tokens=1000)


@pytest.mark.parametrize("value", ["sdpa", "2", 2, True, "true", None, 0.5, "NaN", "1e3", '"x"', "a b", "[1]"])
def test_a_value_survives_its_text(value: Any) -> None:
    read = value_of(text_of(value))
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "[1, 2]", '{"a": 1}', "[" * 100_000, "9" * 5000])
def test_what_is_no_finite_value_is_text(text: str) -> None:
    assert value_of(text) == text
