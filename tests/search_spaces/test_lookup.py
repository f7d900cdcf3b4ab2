"""Spaces by name, by Python file, by transformers config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from trainers.spec import architectures

CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    # The sizes published with each model, and its exact parameter count.
    "bloom-560m": (
        {"model_type": "bloom", "n_layer": 24, "hidden_size": 1024, "n_head": 16, "vocab_size": 250880},
        559_214_592,
    ),
    "gpt2-medium": (
        {
            "model_type": "gpt2",
            "n_layer": 24,
            "n_embd": 1024,
            "n_head": 16,
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_inner": None,
        },
        354_823_168,
    ),
    "pythia-160m": (
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 12,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 50304,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
        162_322_944,
    ),
    "llama-2-7b": (
        {
            "model_type": "llama",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
        6_738_415_616,
    ),
    "qwen2.5-0.5b": (
        {
            "model_type": "qwen2",
            "num_hidden_layers": 24,
            "hidden_size": 896,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": 32768,
            "max_window_layers": 24,
        },
        494_032_768,
    ),
    "qwen3-8b": (
        {
            "model_type": "qwen3",
            "num_hidden_layers": 36,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 12288,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
        },
        8_190_735_360,
    ),
    "qwen3-0.6b": (
        {
            "model_type": "qwen3",
            "num_hidden_layers": 28,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    "mistral-7b-v0.1": (
        {
            "model_type": "mistral",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
        },
        7_241_732_096,
    ),
    "olmo-2-7b": (
        {
            "model_type": "olmo2",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 100352,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
        7_298_617_344,
    ),
    "olmo-3-7b": (
        {
            "model_type": "olmo3",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 100278,
            "max_position_embeddings": 65536,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
        },
        7_298_011_136,
    ),
    "smollm3-3b": (
        {
            "model_type": "smollm3",
            "num_hidden_layers": 36,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "intermediate_size": 11008,
            "vocab_size": 128256,
            "max_position_embeddings": 65536,
            "use_sliding_window": False,
        },
        3_075_098_624,
    ),
    "phi-3-mini-4k": (
        {
            "model_type": "phi3",
            "num_hidden_layers": 32,
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 8192,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "sliding_window": 2047,
            "tie_word_embeddings": False,
        },
        3_821_079_552,
    ),
    "gemma-3-1b": (
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 26,
            "hidden_size": 1152,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 6912,
            "vocab_size": 262144,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        999_885_952,
    ),
}


def test_every_architecture_has_a_published_model_here() -> None:
    assert {config["model_type"] for config, _ in CONFIGS.values()} == set(architectures.names())


def test_names_are_the_spaces_names() -> None:
    assert tuple(space.name for space in search_spaces.built_in_spaces()) == search_spaces.names()
    for space in search_spaces.built_in_spaces():
        assert space.summary and "\n" not in space.summary
        assert search_spaces.load(space.name) == space


def test_an_unknown_name_tells_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown space 'bloom7'; did you mean bloom7b or bloom7b_kinds\?.*gpt2_xl"):
        search_spaces.load("bloom7")


def test_a_model_of_the_hub_gets_the_command_that_downloads_its_config() -> None:
    command = r"hf download org/Model-8B config.json --local-dir Model-8B, then give Model-8B/config.json"
    with pytest.raises(ValueError, match=command):
        search_spaces.load("org/Model-8B")
    for path in ("folder/space.py", "folder/config.json", "a/b/c", "/org/model", "./model"):
        with pytest.raises(ValueError, match=r"^(?!.*hf download)"):
            search_spaces.load(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_json_becomes_a_space(name: str, tmp_path: Path) -> None:
    config, num_parameters = CONFIGS[name]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    space = search_spaces.load(str(folder / "config.json"))
    assert space == search_spaces.load(str(folder))
    assert space.name == name
    assert space.recipe.model.num_parameters == num_parameters
    assert space.recipe.seq_len == (1024 if name == "gpt2-medium" else 2048)
    candidates, rejected = space.candidates(4)
    assert candidates and not rejected
    assert space.miniature is not None and space.miniature.recipe.model.num_parameters < 10e6
    assert space.miniature.candidates(2)[0]


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
    path.write_text(json.dumps({**CONFIGS["llama-2-7b"][0], "num_key_value_heads": 8}))
    space = search_spaces.load(str(path))
    assert space.name == "small-llama" and space.miniature is not None
    assert space.miniature.recipe.model.num_kv_heads == 4 < space.miniature.recipe.model.num_heads


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"{", "is no JSON file of this kind: Expecting property name"),
        (b"\xff\xfe", "is no JSON file of this kind: it is not UTF-8 text"),
        (b"[1]", "it holds a list where a JSON object is expected"),
        (b"{}", "states no model_type: this project trains bloom, gpt2"),
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
