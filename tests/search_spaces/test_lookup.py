"""Spaces by name, by Python file, by transformers config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

import search_spaces

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def test_names_are_the_spaces_names() -> None:
    assert tuple(space.name for space in search_spaces.built_in_spaces()) == search_spaces.names()
    for space in search_spaces.built_in_spaces():
        assert space.summary and "\n" not in space.summary
        assert search_spaces.load(space.name) == space


def test_an_unknown_name_tells_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown space 'bloom7'; did you mean bloom7b or bloom7b_kinds\?.*gpt2_xl"):
        search_spaces.load("bloom7")


def test_a_path_is_no_id_of_the_hub() -> None:
    assert search_spaces.is_of_hub("org/Model-8B") and search_spaces.is_of_hub("org/Model-8B@v1.0")
    for path in ("folder/space.py", "folder/config.json", "a/b/c", "/org/model", "./model", "model", "org/model@"):
        assert not search_spaces.is_of_hub(path)
        with pytest.raises(ValueError, match=r"^(?!.*is no file here)"):
            search_spaces.load(path)


def test_a_model_that_is_small_enough_is_searched_itself_without_a_gpu(tmp_path: Path) -> None:
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}
    path = tmp_path / "small.json"
    path.write_text(json.dumps(sizes))
    space = search_spaces.load(str(path)).with_changes(["global_batch=8"])
    miniature = space.miniature
    assert (
        miniature is not None
        and miniature.recipe.model == space.recipe.model
        and miniature.recipe.model.miniature_of is None
    )
    assert (miniature.recipe.seq_len, miniature.recipe.compute_precision, miniature.num_workers) == (64, "fp32", 2)
    path.write_text(json.dumps({**sizes, "n_layer": 2000}))
    large = search_spaces.load(str(path)).miniature
    assert large is not None and large.recipe.model.miniature_of == "small"


def test_grouped_heads_stay_grouped_in_the_miniature(tmp_path: Path) -> None:
    path = tmp_path / "small-llama.json"
    path.write_text(json.dumps(LLAMA))
    space = search_spaces.load(str(path))
    assert space.name == "small-llama" and space.miniature is not None
    assert space.miniature.recipe.model.num_kv_heads == 4 < space.miniature.recipe.model.num_heads


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"{", "is no JSON file of this kind: Expecting property name"),
        (b"\xff\xfe", "is no JSON file of this kind: it is not UTF-8 text"),
        (b"[1]", "it holds a list where a JSON object is expected"),
        (b"{}", "states no model_type: this project trains .*, bloom, "),
        (b'{"layout": {}}', "is a layout and no model: a search takes it by --layout"),
        (b'{"model_type": "bloom", "n_layer": 2}', r"lacks hidden_size \(hidden_size or n_embed\), num_heads"),
        (b'{"model_type": "bloom", "n_layer": "2"}', "lacks hidden_size"),
    ],
)
def test_a_bad_config_is_one_sentence(text: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=sentence) as raised:
        search_spaces.load(str(path))
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json cannot be read: there is no such file"):
        search_spaces.load(str(tmp_path / "config.json"))
    with pytest.raises(ValueError, match=r"cannot read .*mine\.py: there is no such file"):
        search_spaces.load(str(tmp_path / "mine.py"))


def test_a_space_file_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import dataclasses\n"
        "from search_spaces.gpt2 import gpt2\n"
        "def space():\n"
        "    return dataclasses.replace(gpt2(), name='mine', micro_batches=(1,))\n"
    )
    assert search_spaces.load(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", r"mine\.py defines no function space\(\)"),
        ("def space(): return 3", "returned int, not a Space"),
        ("def space(): return 1 / 0", "cannot load a space from .*: ZeroDivisionError: division by zero"),
        ("import nothing_of_this_name", "cannot load a space from .*: ModuleNotFoundError"),
        ("def space(:", "cannot load a space from .*: SyntaxError"),
    ],
)
def test_a_bad_space_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        search_spaces.load(str(path))


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"mine\.py has 1,099,511,627,776 bytes: at most 16,777,216 are read"):
        search_spaces.load(str(path))
