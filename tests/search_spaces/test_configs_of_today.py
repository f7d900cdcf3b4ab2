"""Configurations as transformers writes them: each becomes a space of that model, or is refused by its key."""

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
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.batch import BatchPoint
from trainers.spec.model import ModelSpec

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
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
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
    "olmo3": _LOCAL,
    "smollm3": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_layer": 6, "n_head": 8, "n_positions": 512},
    "bloom": {},
    "stablelm": {"qk_layernorm": True, "use_parallel_residual": True},
    "glm4": {"head_dim": 16},
    "glm": {"head_dim": 16},
    "starcoder2": _LOCAL,
    "nemotron": {"head_dim": 16},
    "arcee": {},
    "apertus": {},
    "seed_oss": {"head_dim": 16},
    "ernie4_5": {"head_dim": 16},
    "exaone4": _LOCAL,
    "hunyuan_v1_dense": {"head_dim": 16},
    "internlm3": {"head_dim": 16},
    "helium": {"head_dim": 8},
    "granite": {"attention_multiplier": 0.25, "logits_scaling": 8.0},
    "cohere2": _LOCAL,
    "ministral3": {"head_dim": 16},
    "qwen3_moe": {**_EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 16},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": _EXPERTS,
    "qwen2_moe": {**_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 64},
}
REFUSED = {
    "deepseek_v3": "kv_lora_rank",
}


def config_of(kind: str) -> PreTrainedConfig:
    """Returns a small configuration of this `model_type`, with the values that its makers set beyond the sizes."""
    if kind == "gemma3":
        parts: dict[str, Any] = {"text_config": {**_SIZES, **_LOCAL, "head_dim": 16}, "vision_config": _VISION}
        return CONFIG_MAPPING[kind](**parts)
    return CONFIG_MAPPING[kind](**{**_SIZES, **ACCEPTED.get(kind, {})})


def test_every_family_has_a_configuration_here() -> None:
    """Checks those that `tests/whole_searches` searches too."""
    assert {"gemma3_text" if kind == "gemma3" else kind for kind in ACCEPTED} == set(architectures.names())


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
    expected = "global_batch 512 by default: change with --set"
    length = 2048 if kind == "bloom" else 512  # BLOOM states no positions
    assert space.assumption == miniature.assumption == f"seq_len {length} and {expected}"
    assert space.with_changes(["seq_len=256"]).assumption == expected


@pytest.mark.parametrize("kind", REFUSED)
def test_another_mixture_of_experts_is_refused_by_its_key(kind: str, tmp_path: Path) -> None:
    config_of(kind).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f"^{REFUSED[kind]} of .* in models of gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_moe only"
    ) as raised:
        search_spaces.load(str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "key", "value", "sentence"),
    [
        ("gemma3_text", "attn_logit_softcapping", 50.0, "must be null or left out, got 50.0"),
        ("gemma3_text", "use_bidirectional_attention", True, "must be false or left out, got True"),
        ("qwen3", "attention_bias", 1, "must be true, false or left out, got 1"),
        ("qwen2", "use_sliding_window", "yes", "must be true, false or left out, got 'yes'"),
        ("qwen2", "max_window_layers", "few", "max_window_layers must be a whole number of at least 0"),
        ("gemma3_text", "sliding_window_pattern", "local", "sliding_window_pattern must be a whole number"),
        ("llama", "num_hidden_layers", 10**25, "num_hidden_layers of .* must be at most 100,000, got 1000"),
        ("llama", "num_hidden_layers", -5, r"at least 1 for num_layers \(num_hidden_layers\), got -5"),
        ("llama", "num_key_value_heads", 0, r"at least 1 for num_kv_heads \(num_key_value_heads\), got 0"),
        ("llama", "initializer_range", 0, r"a number above 0 for init_std \(initializer_range\), got 0"),
        ("llama", "num_hidden_layers", True, r"a whole number for num_layers \(num_hidden_layers\), got True"),
        ("llama", "rms_norm_eps", float("inf"), "rms_norm_eps of .* must be a finite number, got inf"),
        ("llama", "attention_dropout", float("nan"), "attention_dropout of .* must be a finite number, got nan"),
        ("llama", "attention_dropout", 7, "attention_dropout of .* must lie in .0, 1. or be left out, got 7"),
        ("llama", "rms_norm_eps", True, "rms_norm_eps of .* must be a number of at least 0, got True"),
        ("llama", "head_dim", 33, "33 wide .*choose an even width"),
        ("llama", "rope_theta", 0, "rope_theta of .* must be a number above 0 or left out, got 0"),
        ("llama", "rope_scaling", {"type": "linear"}, "rope_scaling of .* is of type linear and states no factor"),
        ("llama", "rope_scaling", {"type": "yarn", "factor": True}, "factor in rope_scaling of .* above 0 .*got True"),
        ("llama", "rope_scaling", {"rope_type": "zz"}, "rope_type in rope_scaling of .* must be one of .*got 'zz'"),
        ("llama", "partial_rotary_factor", 0.5, "partial_rotary_factor of .* must be 1 .*got 0.5: .* heads of a llama"),
        ("stablelm", "partial_rotary_factor", 0.4, "turn pairs of 3 of these .*an even width by partial_rotary_factor"),
        ("llama", "rope_scaling", "yarn", "rope_scaling of .* must be an object or null, got 'yarn'"),
        ("llama", "architectures", ["LlamaForSequenceClassification"], "architectures of .* next token, take a"),
        ("llama", "quantization_config", {"quant_method": "fp8"}, "quantization_config of .* stored as fp8"),
        ("qwen2", "dual_chunk_attention_config", {"chunk_size": 9}, "dual_chunk_attention_config of .* take the key"),
        ("qwen2", "layer_types", ["sliding_attention"], "layer_types must name"),
        ("mistral", "sliding_window", "wide", "sliding_window must be a whole number"),
        ("mistral", "sliding_window", 0, "sliding_window must be a whole number of tokens above 0, or null, got 0"),
        ("phi3", "sliding_window", 0, "sliding_window must be a whole number of tokens above 0, or null, got 0"),
        ("olmo3", "sliding_window", 0, "sliding_window must be a whole number of tokens above 0, or null, got 0"),
        ("llama", "num_experts", 128, "num_experts of .* is 128: this project trains experts in models of gpt_oss"),
        ("mixtral", "num_experts_per_tok", 9, r"a token takes 1 to all \(num_experts_per_tok\), got 9 of 8"),
        ("mixtral", "num_experts_per_tok", 0, r"at least 1 for experts_per_token \(num_experts_per_tok\), got 0"),
        ("mixtral", "num_local_experts", True, r"a whole number for num_experts \(num_local_experts .*got True"),
        ("mixtral", "sliding_window", 4096, "sliding_window of .* must be null or left out, got 4096"),
        ("mixtral", "router_jitter_noise", 0.1, "router_jitter_noise of .* must be 0.0 or left out, got 0.1"),
        ("mixtral", "output_router_logits", True, "output_router_logits of .* must be false or left out, got True"),
        ("olmoe", "clip_qkv", 8.0, "clip_qkv of .* must be null or left out, got 8.0"),
        ("qwen3_moe", "mlp_only_layers", [0], "mlp_only_layers of .* must be .* or left out, got .0."),
        ("qwen3_moe", "decoder_sparse_step", 2, "decoder_sparse_step of .* must be 1 or left out, got 2"),
        ("qwen3_moe", "use_sliding_window", True, "use_sliding_window of .* must be false or left out, got True"),
        ("qwen3_moe", "norm_topk_prob", 1, r"true or false for norm_topk_prob \(norm_topk_prob\), got 1"),
        ("llama", "seq_length", "long", "seq_length of .* must be a whole number above 0"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_its_key(
    kind: str, key: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    config: dict[str, Any] = {**config_of(kind).to_dict(), key: value}
    if key in ("sliding_window_pattern", "max_window_layers"):
        del config["layer_types"]  # which transformers writes in their place
    if key == "partial_rotary_factor":
        del config["rope_parameters"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=sentence) as raised:
        search_spaces.load(str(path))
    assert key in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("family", architectures.names())
def test_a_width_that_is_not_stated_is_transformers_own_or_asked_for(family: str) -> None:
    """Checks every family without the width of its feed-forward block, which most classes set to a large constant."""
    config: dict[str, Any] = {**config_of(family).to_dict(), "model_type": family}
    (key, *_) = architecture_of(family).config_keys.get("ffn_size", ("intermediate_size",))
    config.pop(key, None)
    try:
        spec = ModelSpec.from_config(config, name="mine")
    except ValueError as error:
        assert f"lacks ffn_size ({key})" in str(error)
        return
    with torch.device("meta"):
        settings = {name: value for name, value in config.items() if name != "model_type"}
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**settings))
    assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_bloom_that_multiplies_by_parts_is_refused() -> None:
    config = {"model_type": "bloom", "n_layer": 2, "hidden_size": 64, "n_head": 4, "vocab_size": 96}
    ModelSpec.from_config({**config, "slow_but_exact": True, "pretraining_tp": 1}, name="mine")
    with pytest.raises(ValueError, match="slow_but_exact of mine with a pretraining_tp of 2 "):
        ModelSpec.from_config({**config, "slow_but_exact": True, "pretraining_tp": 2}, name="mine")


def test_the_language_model_of_a_known_family_is_taken_out_of_one_with_images(tmp_path: Path) -> None:
    inner = {**config_of("mistral").to_dict(), "architectures": None}
    with_images = {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": inner,
    }
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**with_images, "vision_config": _VISION}))
    space = search_spaces.load(str(path))
    assert space.recipe.model.architecture == "mistral"
    assert "mine is trained without its images: of mistral3, its language model, a mistral" in space.sentences
    path.write_text(json.dumps({**with_images, "text_config": {**inner, "model_type": "ministral9"}}))
    with pytest.raises(ValueError, match=r"^model_type 'ministral9' of mine is not known"):
        search_spaces.load(str(path))
    path.write_text(json.dumps({**with_images, "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ValueError, match=r"^quantization_config of mine is stated"):
        search_spaces.load(str(path))


def test_code_that_a_file_names_is_told_not_to_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**config_of("phi3").to_dict(), "auto_map": {"AutoConfig": "own.Config"}}))
    (sentence,) = search_spaces.load(str(path)).remarks
    assert sentence == "auto_map of mine names code, which never runs: transformers' own phi3 is built"


def test_rotary_positions_bound_no_length_but_are_remarked_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    sizes: dict[str, Any] = {**config_of("qwen2").to_dict(), "seq_length": 2048, "global_batch_size": 64}
    path.write_text(json.dumps(sizes))
    (sentence,) = search_spaces.load(str(path)).sentences
    assert sentence.startswith("seq_len 2048 is beyond the 512 positions that mine is made for")
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
    path.write_text(json.dumps({**sizes, "rope_parameters": yarn}))
    space = search_spaces.load(str(path))
    assert not space.sentences and space.with_changes(["seq_len=4k"]).sentences
    learned = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}
    path.write_text(json.dumps({**learned, "seq_length": 128}))
    with pytest.raises(ValueError, match="seq_len 128 is longer than the 64 positions of mine"):
        search_spaces.load(str(path))


def test_a_model_of_the_hub_s_cache_has_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "models--acme--tiny-1b" / "snapshots" / "0f3a"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of("llama").to_dict()))
    assert search_spaces.load(str(folder)).name == "tiny-1b"


def test_length_and_batch_are_those_that_a_configuration_states(tmp_path: Path) -> None:
    config: Any = config_of("llama")
    config.seq_length, config.global_batch_size = 256, 64
    config.save_pretrained(tmp_path)
    space = search_spaces.load(str(tmp_path))
    assert (space.recipe.seq_len, space.recipe.global_batch) == (256, 64)
    assert not space.assumption and space.miniature is not None and not space.miniature.assumption
