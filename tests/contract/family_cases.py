"""Recent model families, each on layouts of four ranks that exercise its own features, and faults that must show."""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

from tests.contract.cases import recipe
from tests.contract.mesh_cases import MeshCase
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.support import standing_refusal

WORLD_SIZE = 4
WINDOW = 7
"""Tokens of the window, in sequences of 24: fewer than a context-parallel rank has, and a divisor of no length."""


def _spec(name: str, **facts: Any) -> ModelSpec:
    # No other width is that of the vocabulary: logits are known by it.
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 104}
    return ModelSpec(name=name, architecture=name, init_std=0.2, **{**sizes, **facts})


FAMILIES = {
    "llama": _spec("llama", attention_bias=True, mlp_bias=True, head_width=16),
    "qwen2": _spec("qwen2", window=WINDOW, window_layers=1),
    "qwen3": _spec("qwen3", head_width=16),
    "mistral": _spec("mistral", window=WINDOW, window_layers=2, head_width=16),
    "olmo2": _spec("olmo2"),
    "olmo3": _spec("olmo3", num_layers=4, window=WINDOW, window_layers=3, head_width=16),
    # A block without rotary positions has no gradient of a bias of keys: it moves all scores of a query alike.
    "smollm3": _spec("smollm3", num_layers=4, mlp_bias=True),
    "stablelm": _spec("stablelm", attention_bias=True),
    "stablelm, parallel": _spec("stablelm", head_norms=True, parallel_residual=True),
    "glm4": _spec("glm4", attention_bias=True, head_width=16),
    "glm": _spec("glm", attention_bias=True, head_width=16),
    "starcoder2": _spec("starcoder2", window=WINDOW, window_layers=2),
    "nemotron": _spec("nemotron", attention_bias=True, mlp_bias=True, head_width=16),
    "arcee": _spec("arcee", attention_bias=True, mlp_bias=True),
    "apertus": _spec("apertus", attention_bias=True),
    "seed_oss": _spec("seed_oss", attention_bias=True, mlp_bias=True, head_width=16),
    "ernie4_5": _spec("ernie4_5", attention_bias=True, mlp_bias=True, head_width=16),
    "exaone4": _spec("exaone4", num_layers=4, window=WINDOW, window_layers=3, head_width=16),
    "hunyuan_v1_dense": _spec("hunyuan_v1_dense", attention_bias=True, head_width=16),
    "internlm3": _spec("internlm3", attention_bias=True, mlp_bias=True, head_width=16),
    "helium": _spec("helium", attention_bias=True, mlp_bias=True),
    "granite": _spec(
        "granite",
        attention_bias=True,
        mlp_bias=True,
        head_width=16,
        embedding_multiplier=3.0,
        attention_multiplier=0.7,
        residual_multiplier=0.6,
        logits_scaling=1.7,
    ),
    "cohere2": _spec("cohere2", num_layers=4, window=WINDOW, window_layers=3, logit_scale=0.3),
    # Sequences of 24 are longer than 8, from which on queries are scaled by their position.
    "ministral3": _spec(
        "ministral3",
        window=WINDOW,
        window_layers=2,
        head_width=16,
        config=json.dumps(
            {
                "model_type": "ministral3",
                "pad_token_id": None,
                "num_hidden_layers": 2,
                "hidden_size": 32,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 104,
                "intermediate_size": 128,
                "head_dim": 16,
                "sliding_window": WINDOW,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 8,
                    "llama_4_scaling_beta": 0.5,
                    "max_position_embeddings": 32,
                },
            }
        ),
    ),
    "phi3": _spec("phi3", window=WINDOW, window_layers=2),
    "qwen3_moe": _spec(
        "qwen3_moe", head_width=16, ffn_size=24, num_experts=8, experts_per_token=3, norm_topk_prob=True
    ),
    "mixtral": _spec("mixtral", head_width=16, ffn_size=40, num_experts=4, experts_per_token=2),
    "qwen2_moe": _spec("qwen2_moe", ffn_size=24, shared_ffn_size=40, num_experts=8, experts_per_token=2),
    "olmoe": _spec("olmoe", ffn_size=24, num_experts=8, experts_per_token=2),
    "gpt_oss": _spec(
        "gpt_oss",
        window=WINDOW,
        window_layers=1,
        head_width=16,
        ffn_size=24,
        attention_bias=True,
        num_experts=8,
        experts_per_token=2,
    ),
    "gemma3_text": _spec("gemma3_text", num_layers=4, window=WINDOW, window_layers=3, head_width=16, logit_softcap=3.0),
}

_DDP: dict[str, Any] = {"engine": "ddp"}
_STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2}
_STAGE_3: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3}

_QUICK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "fp32", {**_STAGE_3, "tp": 2, "dp_shard": 2, "attention": "sdpa"}),
    ("qwen2", "fp32", {**_STAGE_3, "tp": 2, "dp_shard": 2, "attention": "sdpa"}),
    ("qwen3", "fp32", {**_STAGE_2, "cp": 2, "tp": 2, "attention": "flex", "loss": "chunked"}),
    ("mistral", "fp32", {**_DDP, "cp": 2, "dp_replicate": 2, "attention": "sdpa"}),
    ("olmo2", "fp32", {**_STAGE_3, "cp": 2, "dp_shard": 2, "attention": "sdpa", "loss": "chunked"}),
    ("olmo3", "fp32", {**_DDP, "cp": 2, "pp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("smollm3", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "flex", "loss": "chunked"}),
    ("stablelm", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("stablelm, parallel", "fp32", {**_DDP, "cp": 2, "pp": 2, "attention": "sdpa"}),
    ("glm4", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "flex", "loss": "chunked"}),
    ("glm", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("starcoder2", "fp32", {**_STAGE_2, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("nemotron", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "flex"}),
    ("arcee", "fp32", {**_DDP, "pp": 2, "tp": 2, "attention": "sdpa"}),
    ("apertus", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "flex", "loss": "chunked"}),
    ("seed_oss", "fp32", {**_STAGE_2, "cp": 2, "tp": 2, "attention": "flex", "loss": "chunked"}),
    ("ernie4_5", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("exaone4", "fp32", {**_DDP, "pp": 2, "tp": 2, "attention": "flex"}),
    ("hunyuan_v1_dense", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("internlm3", "fp32", {**_DDP, "pp": 2, "tp": 2, "attention": "sdpa"}),
    ("helium", "fp32", {**_STAGE_2, "cp": 2, "tp": 2, "attention": "flex"}),
    ("granite", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "flex", "loss": "chunked"}),
    ("cohere2", "fp32", {**_DDP, "cp": 2, "pp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("cohere2", "fp32", {**_STAGE_3, "tp": 2, "dp_shard": 2, "attention": "flex"}),
    ("ministral3", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("phi3", "fp32", {**_STAGE_3, "dp_replicate": 2, "dp_shard": 2, "attention": "eager", "checkpointing": "every_2"}),
    ("gemma3_text", "fp32", {**_STAGE_3, "cp": 2, "tp": 2, "attention": "sdpa", "loss": "chunked"}),
    ("qwen3_moe", "fp32", {**_STAGE_2, "cp": 2, "dp_shard": 2, "attention": "sdpa", "experts": "grouped"}),
    ("mixtral", "fp32", {**_DDP, "pp": 2, "dp_replicate": 2, "attention": "sdpa", "experts": "grouped"}),
    ("mixtral", "fp32", {**_STAGE_3, "dp_replicate": 2, "dp_shard": 2, "attention": "sdpa", "checkpointing": "full"}),
    ("qwen2_moe", "fp32", {**_STAGE_3, "dp_shard": 4, "ep": 2, "attention": "sdpa", "experts": "grouped"}),
    ("qwen2_moe", "fp32", {**_DDP, "pp": 2, "dp_replicate": 2, "attention": "sdpa", "loss": "chunked"}),
    ("olmoe", "fp32", {**_DDP, "dp_replicate": 4, "attention": "sdpa", "experts": "grouped"}),
    ("gpt_oss", "fp32", {**_STAGE_3, "dp_shard": 4, "ep": 2, "attention": "flex", "experts": "grouped"}),
    ("gpt_oss", "fp32", {**_STAGE_2, "cp": 2, "dp_shard": 2, "attention": "flex", "experts": "grouped"}),
    ("gpt_oss", "fp32", {**_DDP, "pp": 2, "dp_replicate": 2, "attention": "eager", "experts": "grouped"}),
    ("gemma3_text", "bf16", {**_STAGE_2, "dp_shard": 4, "attention": "sdpa", "checkpointing": "full"}),
)

# Fault -> family; planted on four data-parallel ranks.
FAULTS: Mapping[str, str] = {
    "soft cap left out": "gemma3_text",
    "window one token longer": "mistral",
    "norms of queries and keys left out": "qwen3",
    "router without a gradient": "mixtral",
    "experts of the next token": "olmoe",
    "sinks left out": "gpt_oss",
    "biases of the next expert": "gpt_oss",
}


def _case(family: str, precision: str, layout: Mapping[str, Any], fault: str = "") -> MeshCase:
    chosen = recipe(FAMILIES[family], precision)
    if chosen.model.num_experts and precision == "bf16":  # learned routes are not those of the dense model in fp32
        chosen = dataclasses.replace(chosen, routing="balanced")
    return MeshCase(recipe=chosen, layout=Layout(**layout), fault=fault)


def quick() -> list[MeshCase]:
    """Returns the cases and faults that run at every change."""
    plain = {**_DDP, "dp_replicate": 4, "attention": "sdpa"}
    with_sinks = {**plain, "attention": "flex", "experts": "grouped"}
    return [
        *(_case(*arguments) for arguments in _QUICK),
        *(
            _case(family, "fp32", with_sinks if family == "gpt_oss" else plain, fault)
            for fault, family in FAULTS.items()
        ),
    ]


def product() -> list[MeshCase]:
    """Returns a case of every family, engine, attention and degree that is not refused; the two losses alternate."""
    degrees: tuple[dict[str, int], ...] = ({}, {"tp": 2}, {"cp": 2}, {"cp": 2, "tp": 2}, {"pp": 2})
    mesh_cases: list[MeshCase] = []
    chosen = itertools.product(FAMILIES, (_DDP, _STAGE_2, _STAGE_3), ("eager", "sdpa", "flex"), degrees)
    for place, (family, engine, attention, split) in enumerate(chosen):
        ranks = WORLD_SIZE
        for degree in split.values():
            ranks //= degree
        data = {"dp_replicate" if engine is _DDP else "dp_shard": ranks}
        loss = ("plain", "chunked")[place % 2]
        case = _case(family, "fp32", {**engine, **data, **split, "attention": attention, "loss": loss})
        if standing_refusal(case.recipe, case.layout, WORLD_SIZE) is None:
            mesh_cases.append(case)
    return mesh_cases
