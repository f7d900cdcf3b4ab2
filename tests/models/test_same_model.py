"""Two models compared: a key of a `config.json` that is changed is named, unless the logits stay the same."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from trainers.models.model import config_of
from trainers.models.same_model import differences
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.model import ModelSpec

SIZES: dict[str, int] = {
    "num_layers": 4, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 64, "ffn_size": 48,
    "max_positions": 64, "head_width": 8,
}  # fmt: skip
OTHER: dict[str, Any] = {
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "activation_function": "relu",
    "sliding_window": 6,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "no_rope_layers": [0, 1, 1, 1],
    "final_logit_softcapping": 0.5,
    "query_pre_attn_scalar": 3,
    "n_inner": 40,
    "bos_token_id": 3,
    "eos_token_id": 3,
    "pad_token_id": 3,
}
"""Another value of the keys whose kind does not give one."""
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 9, "intermediate_size": 96,
}  # fmt: skip
GENERAL = set(PreTrainedConfig().to_dict())
LENGTH = 12


def whole_config(family: str) -> dict[str, Any]:
    """Returns the whole `config.json` of a tiny model of the family, every key stated."""
    keys = architecture_of(family).config_keys
    sizes = {keys[field][0]: size for field, size in SIZES.items() if field in keys}
    window = {"use_sliding_window": True, "sliding_window": 4} if family in ("qwen2", "qwen3") else {}
    if family in ("mistral", "phi3", "olmo3", "gemma3_text", "starcoder2", "exaone4", "cohere2", "ministral3"):
        window = {"sliding_window": 4}
    extra = {"final_logit_softcapping": 2.0} if family == "gemma3_text" else {}
    spec = ModelSpec.from_config({"model_type": family, **sizes, **window, **extra}, name="tiny")
    return {key: value for key, value in config_of(spec).to_dict().items() if key not in GENERAL} | {
        "model_type": family
    }


def changed(key: str, value: Any) -> Any:
    """Returns another value than a key has."""
    if isinstance(value, dict):
        stated = dict(value)  # type: ignore[reportUnknownArgumentType]
        inner = next(name for name in ("rope_theta", "full_attention") if name in stated)
        return {**stated, inner: changed(inner, stated[inner])}
    if key in OTHER and OTHER[key] != value:
        return OTHER[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 if value else 0.5
    return None


def logits(spec: ModelSpec) -> torch.Tensor:
    model = AutoModelForCausalLM.from_config(config_of(spec), attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        tokens = torch.arange(4, 4 + LENGTH)[None]
        return model(tokens, position_ids=torch.arange(LENGTH)[None]).logits


@pytest.mark.parametrize("family", architectures.names())
def test_a_key_that_is_changed_is_named_or_changes_no_logits(family: str) -> None:
    """Changes each key that transformers' class declares in turn."""
    config = whole_config(family)
    spec = ModelSpec.from_config(config, name="mine")
    assert not differences(spec, spec)
    before, named = logits(spec), 0
    for key, value in config.items():
        if key == "model_type" or (other := changed(key, value)) == value:
            continue
        try:
            second = ModelSpec.from_config({**config, key: other}, name="mine")
            differing = differences(second, spec)
        except Exception:  # refused by the reader, or by transformers in an error of its own
            continue
        named += bool(differing)
        if differing:
            assert any(name.partition(".")[0] == key for name, _, _ in differing), (key, differing)
        else:
            assert torch.equal(logits(second), before), f"{key} {value} -> {other}"
    assert named >= 5, "some keys are seen"


def test_what_is_left_out_has_the_defaults_of_transformers() -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    spec = ModelSpec.from_config(bare, name="mine")
    stated = {"rope_theta": 1e4, "rms_norm_eps": 1e-6, "head_dim": 16, "num_key_value_heads": 4, "comment": "x"}
    same = ModelSpec.from_config({**bare, **stated, "intermediate_size": spec.ffn_size}, name="mine")
    assert not differences(spec, same)


LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}


@pytest.mark.parametrize(
    ("stated", "names"),
    [
        ({"rope_theta": 5e5, "rms_norm_eps": 1e-5}, ["rms_norm_eps", "rope_parameters.rope_theta"]),
        (LINEAR, ["rope_parameters.factor", "rope_parameters.rope_type"]),
        ({"num_hidden_layers": 4}, ["num_hidden_layers"]),
        (HEADS, ["head_dim", "num_attention_heads", "num_key_value_heads"]),
        ({"tie_word_embeddings": True}, ["tie_word_embeddings"]),
    ],
)
def test_the_differences_that_were_once_trained_are_named(stated: dict[str, Any], names: list[str]) -> None:
    first, second = (ModelSpec.from_config({**LLAMA, **extra}, name="mine") for extra in (stated, {}))
    assert sorted(name for name, _, _ in differences(first, second)) == names
