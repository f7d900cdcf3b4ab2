"""A benchmark's model of fewer blocks, also where a user's config.json states how many it has."""

# pyright: reportPrivateUsage=false

from typing import Any

import pytest

from benchmarks import mesh_gradients
from trainers.models.model import build
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 48}
LLAMA = {**SIZES, "model_type": "llama", "num_hidden_layers": 6, "rope_theta": 5e5, "rms_norm_eps": 1e-4}
BLOCKS = {
    "llama": LLAMA,
    "gpt2": {"model_type": "gpt2", "n_layer": 5, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 128},
    "qwen3": {
        **SIZES,
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": ["full_attention", "full_attention", "sliding_attention", "sliding_attention"],
    },
    "gemma3_text": {
        **SIZES,
        "model_type": "gemma3_text",
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
    },
}


def _short(model: ModelSpec, num_layers: int) -> ModelSpec:
    return mesh_gradients._short(Recipe(model=model, seq_len=32, global_batch=8), num_layers).model


@pytest.mark.parametrize("name", BLOCKS)
def test_a_model_of_a_config_json_is_built_with_so_many_blocks(name: str) -> None:
    short = _short(ModelSpec.from_config(BLOCKS[name], name=name), 3)
    assert len(build(short, attention="eager").blocks) == 3


def test_all_else_that_a_config_json_states_stays() -> None:
    short = _short(ModelSpec.from_config(LLAMA, name="mine"), 2)
    config: Any = build(short, attention="eager").module.config
    assert (short.name, config.rms_norm_eps) == ("mine", 1e-4)
    assert short == ModelSpec.from_config({**LLAMA, "num_hidden_layers": 2}, name="mine")


def test_windows_are_those_of_the_first_blocks() -> None:
    model = ModelSpec.from_config(BLOCKS["qwen3"], name="windows")
    assert (model.window_layers, _short(model, 3).window_layers) == (2, 1)
    without = _short(model, 2)
    assert (without.window, without.window_layers) == (0, 0)


def test_a_model_without_a_config_json_keeps_its_share_of_windows() -> None:
    sizes: dict[str, Any] = {"hidden_size": 32, "num_heads": 4, "vocab_size": 64, "ffn_size": 48}
    model = ModelSpec(name="own", architecture="mistral", num_layers=6, window=16, window_layers=6, **sizes)
    short = _short(model, 2)
    assert short.window_layers == 2 and len(build(short, attention="eager").blocks) == 2
