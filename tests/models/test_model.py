"""Models: exact parameter counts, nothing allocated, dropout off, and the loss by hand."""

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trainers.kernels.head import causal_lm_loss
from trainers.models import weights
from trainers.models.model import build, config_of
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.model import ModelSpec

SIZES: dict[str, Any] = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "vocab_size": 97}
SPECS = {
    "bloom": ModelSpec(name="bloom", architecture="bloom", **SIZES),
    "gpt2": ModelSpec(name="gpt2", architecture="gpt2", max_positions=40, **SIZES),
    "gpt2, normed": ModelSpec(name="normed", architecture="gpt2", max_positions=40, embedding_norm=True, **SIZES),
    "gpt2, narrow": ModelSpec(name="narrow", architecture="gpt2", max_positions=40, ffn_size=80, **SIZES),
    "gpt_neox": ModelSpec(name="gpt_neox", architecture="gpt_neox", **SIZES),
    "llama": ModelSpec(name="llama", architecture="llama", ffn_size=88, num_kv_heads=2, **SIZES),
    "llama, tied": ModelSpec(name="tied", architecture="llama", tied_embeddings=True, **SIZES),
    "qwen2": ModelSpec(name="qwen2", architecture="qwen2", num_kv_heads=2, window=8, window_layers=2, **SIZES),
    "qwen3": ModelSpec(name="qwen3", architecture="qwen3", num_kv_heads=2, head_width=16, **SIZES),
    "mistral": ModelSpec(name="mistral", architecture="mistral", num_kv_heads=2, window=8, window_layers=3, **SIZES),
    "olmo2": ModelSpec(name="olmo2", architecture="olmo2", **SIZES),
    "olmo3": ModelSpec(name="olmo3", architecture="olmo3", num_kv_heads=2, window=8, window_layers=2, **SIZES),
    "smollm3": ModelSpec(name="smollm3", architecture="smollm3", num_kv_heads=2, **SIZES),
    "phi3": ModelSpec(name="phi3", architecture="phi3", num_kv_heads=2, window=8, window_layers=3, **SIZES),
    "stablelm": ModelSpec(name="stablelm", architecture="stablelm", num_kv_heads=2, attention_bias=True, **SIZES),
    "stablelm, parallel": ModelSpec(
        name="parallel", architecture="stablelm", num_kv_heads=2, head_norms=True, parallel_residual=True, **SIZES
    ),
    "glm4": ModelSpec(name="glm4", architecture="glm4", num_kv_heads=2, attention_bias=True, **SIZES),
    "glm4, no biases": ModelSpec(name="plain", architecture="glm4", num_kv_heads=2, head_width=16, **SIZES),
    "glm": ModelSpec(name="glm", architecture="glm", num_kv_heads=2, attention_bias=True, **SIZES),
    "starcoder2": ModelSpec(name="starcoder2", architecture="starcoder2", num_kv_heads=2, **SIZES),
    "nemotron": ModelSpec(name="nemotron", architecture="nemotron", num_kv_heads=2, head_width=16, **SIZES),
    "arcee": ModelSpec(name="arcee", architecture="arcee", num_kv_heads=2, mlp_bias=True, **SIZES),
    "apertus": ModelSpec(name="apertus", architecture="apertus", num_kv_heads=2, attention_bias=True, **SIZES),
    "seed_oss": ModelSpec(name="seed", architecture="seed_oss", num_kv_heads=2, attention_bias=True, **SIZES),
    "ernie4_5": ModelSpec(name="ernie4_5", architecture="ernie4_5", num_kv_heads=2, **SIZES),
    "exaone4": ModelSpec(name="exaone4", architecture="exaone4", num_kv_heads=2, window=8, window_layers=2, **SIZES),
    "exaone4, global": ModelSpec(name="global", architecture="exaone4", num_kv_heads=2, **SIZES),
    "hunyuan_v1_dense": ModelSpec(name="hunyuan", architecture="hunyuan_v1_dense", num_kv_heads=2, **SIZES),
    "internlm3": ModelSpec(
        name="internlm3", architecture="internlm3", num_kv_heads=2, attention_bias=True, mlp_bias=True, **SIZES
    ),
    "helium": ModelSpec(name="helium", architecture="helium", num_kv_heads=2, attention_bias=True, **SIZES),
    "granite": ModelSpec(
        name="granite", architecture="granite", num_kv_heads=2, mlp_bias=True, logits_scaling=8.0, **SIZES
    ),
    "cohere2": ModelSpec(name="cohere2", architecture="cohere2", num_kv_heads=2, window=8, window_layers=2, **SIZES),
    "ministral3": ModelSpec(name="ministral3", architecture="ministral3", num_kv_heads=2, head_width=16, **SIZES),
    "qwen3_moe": ModelSpec(
        name="qwen3_moe",
        architecture="qwen3_moe",
        num_kv_heads=2,
        ffn_size=24,
        num_experts=8,
        experts_per_token=3,
        norm_topk_prob=True,
        **SIZES,
    ),
    "mixtral": ModelSpec(
        name="mixtral", architecture="mixtral", num_kv_heads=2, num_experts=4, experts_per_token=2, **SIZES
    ),
    "qwen2_moe": ModelSpec(
        name="qwen2_moe",
        architecture="qwen2_moe",
        ffn_size=24,
        shared_ffn_size=40,
        num_experts=8,
        experts_per_token=2,
        **SIZES,
    ),
    "olmoe": ModelSpec(name="olmoe", architecture="olmoe", ffn_size=24, num_experts=8, experts_per_token=2, **SIZES),
    "gpt_oss": ModelSpec(
        name="gpt_oss",
        architecture="gpt_oss",
        num_kv_heads=2,
        head_width=16,
        window=8,
        window_layers=2,
        ffn_size=24,
        attention_bias=True,
        num_experts=8,
        experts_per_token=2,
        **SIZES,
    ),
    "gemma3_text": ModelSpec(
        name="gemma3", architecture="gemma3_text", head_width=16, window=8, window_layers=2, logit_softcap=2.0, **SIZES
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_parameters_are_counted_exactly_and_hold_no_memory(name: str) -> None:
    model = build(SPECS[name], attention="eager")
    assert sum(parameter.numel() for parameter in model.module.parameters()) == SPECS[name].num_parameters
    assert all(parameter.is_meta for parameter in model.module.parameters())
    assert not any(buffer.is_meta for buffer in model.module.buffers())
    assert len(model.blocks) == 3
    assert [model.module.get_submodule(path) for path in model.block_names] == list(model.blocks)


@pytest.mark.parametrize("name", SPECS)
def test_the_declared_paths_lead_to_the_parts_of_the_model(name: str) -> None:
    """Checks that every parameter is in one part, and that a tied head has the token embedding's."""
    declared, model = architecture_of(SPECS[name].architecture), build(SPECS[name], attention="eager")
    token_embedding = model.module.get_submodule(declared.embeddings[0])
    assert token_embedding is model.module.get_input_embeddings()
    assert model.head is model.module.get_output_embeddings()
    assert (model.head.weight is token_embedding.weight) == SPECS[name].tied_embeddings
    paths = [*declared.embeddings, declared.blocks, declared.final_norm, declared.head]
    parts = [set(model.module.get_submodule(path).parameters()) for path in paths]
    assert set[object]().union(*parts) == set(model.names)
    # The place of a norm that the model has not is empty.
    empty = [path for path, part in zip(paths, parts, strict=True) if not part]
    assert empty == ([declared.norm_place] if declared.norm_place and not SPECS[name].embedding_norm else [])
    assert sum(map(len, parts)) == len(model.names) + bool(SPECS[name].tied_embeddings)


@pytest.mark.parametrize("name", SPECS)
def test_vectors_start_as_transformers_starts_them(name: str) -> None:
    """Checks norms, biases and learned numbers. Matrices and sinks are drawn by seed and name, a router's biases are
    zeros, and Nemotron's norms multiply by one plus their weight, which transformers starts at 1 all the same.
    """
    spec = SPECS[name]
    model = AutoModelForCausalLM.from_config(config_of(spec), dtype=torch.float32)
    vectors = {path: vector for path, vector in model.named_parameters() if vector.dim() < 2}
    draw = functools.partial(weights.draw, seed=3, std=0.2, device=torch.device("cpu"), vector_start=spec.vector_start)
    differing = {path for path, vector in vectors.items() if not torch.equal(draw(path, vector.shape), vector)}
    of_own = {"nemotron": ("norm.weight",), "gpt_oss": ("sinks", "router.bias")}.get(name, ())
    assert vectors and differing == {path for path in vectors if path.endswith(of_own)}


def test_every_architecture_is_built_here() -> None:
    assert {spec.architecture for spec in SPECS.values()} == set(architectures.names())


def test_published_sizes() -> None:
    bloom = ModelSpec(
        name="bloom-7b1", architecture="bloom", num_layers=30, hidden_size=4096, num_heads=32, vocab_size=250880
    )
    assert sum(parameter.numel() for parameter in build(bloom, attention="eager").names) == 7_069_016_064
    gpt2 = ModelSpec(
        name="gpt2",
        architecture="gpt2",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        vocab_size=50257,
        max_positions=1024,
    )
    assert sum(parameter.numel() for parameter in build(gpt2, attention="sdpa").names) == 124_439_808


@pytest.mark.parametrize("name", [name for name in SPECS if "bloom" not in name])
def test_sdpa_and_eager_agree(name: str) -> None:
    spec = dataclasses.replace(SPECS[name], init_std=0.2)
    tokens = torch.arange(48).reshape(2, 24)
    logits = []
    for attention in ("eager", "sdpa"):
        model = build(spec, attention=attention)
        weights.materialise(model.module, names=model.names, seed=3, std=0.2, device=torch.device("cpu"))
        logits.append(model.module(tokens).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)


def test_a_config_is_taken_verbatim_but_for_dropout_cache_and_dtype() -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "vocab_size": 97,
        "n_positions": 40,
        "activation_function": "relu",
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.2,
        "embd_pdrop": 0.3,
        "use_cache": True,
        "torch_dtype": "float16",
    }
    model = build(ModelSpec.from_config(config, name="mine"), attention="eager")
    stored_config = model.module.config
    assert stored_config.activation_function == "relu"
    assert (stored_config.resid_pdrop, stored_config.attn_pdrop, stored_config.embd_pdrop, stored_config.use_cache) == (
        0.0,
        0.0,
        0.0,
        False,
    )
    assert {parameter.dtype for parameter in model.names} == {torch.float32}
    assert {module.p for module in model.module.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 88,
    "vocab_size": 97,
}
NEOX = {**LLAMA, "model_type": "gpt_neox"}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 97, "n_positions": 40}


@pytest.mark.parametrize(
    ("config", "field", "counted", "other"),
    [
        (NEOX, "attention_bias", True, False),
        (GPT2, "add_cross_attention", False, True),
    ],
)
def test_a_config_s_parameters_are_counted_as_transformers_does_or_it_is_refused(
    config: dict[str, Any], field: str, counted: Any, other: Any
) -> None:
    def transformers_count(value: Any) -> int:
        fields = {key: stated_value for key, stated_value in config.items() if key != "model_type"}
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**fields, **{field: value}))
        return sum(parameter.numel() for parameter in model.parameters())

    for stated in ({}, {field: None}, {field: counted}):
        spec = ModelSpec.from_config({**config, **stated}, name="mine")
        assert spec.num_parameters == transformers_count(counted), stated
    assert transformers_count(other) != transformers_count(counted), "it need not be refused"
    with pytest.raises(ValueError, match=f"{field} of mine must be {counted} or left out, got {other}"):
        ModelSpec.from_config({**config, field: other}, name="mine")


@pytest.mark.parametrize(
    ("family", "stated"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True, "head_dim": 16}),
        *((family, {"head_dim": 16}) for family in ("llama", "qwen2", "qwen3", "mistral", "olmo2", "phi3")),
        *((family, {"attention_bias": True, "head_dim": 16}) for family in ("qwen3", "olmo2", "gemma3_text")),
        *((family, {"head_dim": 12, "hidden_size": 30}) for family in ("qwen2", "qwen3", "olmo2", "phi3")),
        *((family, {"head_dim": None}) for family in ("llama", "qwen2", "olmo2", "phi3")),
    ],
)
def test_widths_of_heads_and_biases_are_counted_where_transformers_reads_them(
    family: str, stated: dict[str, Any]
) -> None:
    spec = ModelSpec.from_config({**LLAMA, "model_type": family, **stated}, name="mine")
    module = build(spec, attention="eager").module  # raises where the count is another
    assert any("o_proj.bias" in name for name, _ in module.named_parameters()) == ("attention_bias" in stated)
    assert any("down_proj.bias" in name for name, _ in module.named_parameters()) == ("mlp_bias" in stated)
    sizes = dataclasses.replace(spec, config="")
    assert dataclasses.replace(ModelSpec.from_config(sizes.to_config(), name="mine"), config="") == sizes


def test_biases_that_a_family_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="a qwen2, cannot have attention_bias True"):
        dataclasses.replace(SPECS["qwen2"], attention_bias=True)


@pytest.mark.parametrize("padding", [97, 10**6, -98])
def test_padding_outside_of_the_vocabulary_is_left_out(padding: int) -> None:
    model = build(ModelSpec.from_config({**LLAMA, "pad_token_id": padding}, name="mine"), attention="eager")
    assert model.module.config.pad_token_id is None
    verbatim = build(ModelSpec.from_config({**LLAMA, "pad_token_id": 96}, name="mine"), attention="eager")
    assert verbatim.module.config.pad_token_id == 96


def test_code_that_a_config_names_is_not_looked_at() -> None:
    config = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "nowhere.Model"}}
    assert not hasattr(build(ModelSpec.from_config(config, name="mine"), attention="eager").module.config, "auto_map")


def test_a_config_whose_facts_do_not_fit_is_refused() -> None:
    spec = dataclasses.replace(ModelSpec.from_config(LLAMA, name="wide"), ffn_size=80)
    with pytest.raises(ValueError, match=r"wide has .* parameters in transformers, but its facts give"):
        build(spec, attention="eager")


def test_what_transformers_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no llama with a norm after the embedding.*use bloom or gpt2"):
        build(dataclasses.replace(SPECS["llama"], embedding_norm=True), attention="eager")


def test_a_gpt2_with_a_norm_after_the_embedding_norms_tokens_and_positions() -> None:
    spec = dataclasses.replace(SPECS["gpt2, normed"], init_std=0.5)
    model = build(spec, attention="eager")
    weights.materialise(model.module, names=model.names, seed=3, std=0.5, device=torch.device("cpu"))
    block_inputs: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: block_inputs.append(args[0]))
    tokens = torch.arange(48).reshape(2, 24)
    model.module(tokens)
    transformer: Any = model.module.transformer
    embedded = transformer.wte.weight[tokens] + transformer.wpe.weight[:24]
    torch.testing.assert_close(block_inputs[0], torch.nn.functional.layer_norm(embedded, (32,)))


def test_the_loss_is_the_mean_cross_entropy_in_fp32() -> None:
    logits = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]], dtype=torch.bfloat16)
    loss = causal_lm_loss(logits, torch.tensor([[1, 0]]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx((math.log(2) + math.log(1 + math.exp(-2))) / 2)
