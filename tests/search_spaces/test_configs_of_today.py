"""Ten configurations as transformers writes them: each becomes a space of that model, or is refused by its key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import search_spaces
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from trainers.spec.batch import BatchPoint

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}
_LOCAL = {"sliding_window": 64}
_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
ACCEPTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, **_LOCAL, "max_window_layers": 4},
    "qwen3": {"head_dim": 16},
    "mistral": {**_LOCAL, "head_dim": 16},
    "gemma3_text": {**_LOCAL, "head_dim": 16, "final_logit_softcapping": 30.0},
    "gemma3": {},
    "phi3": _LOCAL,
    "olmo2": {},
}
REFUSED = {"qwen3_moe": "num_local_experts", "gpt_oss": "num_local_experts"}


def config_of(kind: str) -> PreTrainedConfig:
    """Returns a small configuration of this `model_type`, with the values that its makers set beyond the sizes."""
    if kind == "gemma3":
        parts: dict[str, Any] = {"text_config": {**_SIZES, **_LOCAL, "head_dim": 16}, "vision_config": _VISION}
        return CONFIG_MAPPING[kind](**parts)
    return CONFIG_MAPPING[kind](**{**_SIZES, **ACCEPTED.get(kind, {})})


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_configuration_becomes_a_space_of_that_model(kind: str, tmp_path: Path) -> None:
    config: Any = config_of(kind)
    config.save_pretrained(tmp_path)
    space = search_spaces.load(str(tmp_path))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config.get_text_config())
    assert space.recipe.model.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    candidates, _ = space.candidates(4)
    assert candidates
    batch = BatchPoint(micro_batch=1, grad_accum=128)
    steps = predict(
        from_points([(candidate.recipe, candidate.layout, batch) for candidate in candidates], find_cluster("4xH100"))
    )
    assert np.all(np.isfinite(steps.step.total_s) & (steps.step.total_s > 0))
    miniature = space.miniature
    assert miniature is not None and miniature.candidates(2)[0]
    expected = f"global_batch 512 by default, which {space.name} does not state: change with --set"
    assert space.assumption == miniature.assumption == f"seq_len 512 and {expected}"
    assert space.with_changes(["seq_len=256"]).assumption == expected


@pytest.mark.parametrize("kind", REFUSED)
def test_a_mixture_of_experts_is_refused_by_its_key(kind: str, tmp_path: Path) -> None:
    config_of(kind).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f"^{REFUSED[kind]} of .* this project trains no mixtures of experts"
    ) as raised:
        search_spaces.load(str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "key", "value", "sentence"),
    [
        ("gemma3_text", "attn_logit_softcapping", 50.0, "must be null or left out, got 50.0"),
        ("gemma3_text", "use_bidirectional_attention", True, "must be false or left out, got True"),
        ("qwen3", "attention_bias", True, "must be False or left out, got True"),
        ("qwen2", "layer_types", ["sliding_attention"], "layer_types must name"),
        ("mistral", "sliding_window", "wide", "sliding_window must be a whole number"),
        ("llama", "num_experts", 128, "num_experts of .* is 128: this project trains no mixtures of experts"),
        ("llama", "seq_length", "long", "seq_length of .* must be a whole number above 0"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_its_key(
    kind: str, key: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of(kind).to_dict(), key: value}))
    with pytest.raises(ValueError, match=sentence) as raised:
        search_spaces.load(str(path))
    assert key in str(raised.value) and "\n" not in str(raised.value)


def test_length_and_batch_are_those_that_a_configuration_states(tmp_path: Path) -> None:
    config: Any = config_of("llama")
    config.seq_length, config.global_batch_size = 256, 64
    config.save_pretrained(tmp_path)
    space = search_spaces.load(str(tmp_path))
    assert (space.recipe.seq_len, space.recipe.global_batch) == (256, 64)
    assert not space.assumption and space.miniature is not None and not space.miniature.assumption
