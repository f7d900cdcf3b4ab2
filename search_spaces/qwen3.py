"""Qwen3 8B (https://huggingface.co/Qwen/Qwen3-8B) at the length of the Llama 3 8B space, also frozen with adapters; and
Qwen3 30B-A3B (https://huggingface.co/Qwen/Qwen3-30B-A3B), whose blocks have 128 experts.
"""

import dataclasses
from typing import Any

from search_spaces import engines
from search_spaces.experts import with_experts
from search_spaces.llama3 import llama3_8b
from search_spaces.miniature import stand_in
from search_spaces.space import Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_SHARED: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40_960,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151_936,
}
QWEN3_8B = ModelSpec.from_config(
    {
        **_SHARED,
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
    },
    name="qwen3-8b",
)
"""8,190,735,360 parameters; https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json."""

QWEN3_30B_A3B = ModelSpec.from_config(
    {
        **_SHARED,
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "router_aux_loss_coef": 0.001,
    },
    name="qwen3-30b-a3b",
)
"""30,532,122,624 parameters, of which a token uses 3,353,032,704;
https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json.
"""


def qwen3_8b() -> Space:
    """Returns Qwen3 8B at sequence 8192 with the axes of `llama3_8b`."""
    space = dataclasses.replace(
        llama3_8b(),
        name="qwen3_8b",
        summary="Qwen3 8B, sequence 8192, global batch 128: FSDP2 and ZeRO, tensor, pipeline and context parallel",
        recipe=Recipe(model=QWEN3_8B, seq_len=8192, global_batch=128),
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))


def qwen3_8b_lora() -> Space:
    """Returns Qwen3 8B, frozen, with adapters of rank 16 on all linear layers, at sequence 2048, for the engines that
    train adapters; whole replicas, included, take 16 GiB.
    """
    base = llama3_8b()
    untried = ("pp", "schedule", "virtual")
    space = dataclasses.replace(
        base,
        name="qwen3_8b_lora",
        summary="Qwen3 8B with adapters of rank 16 (LoRA), sequence 2048, global batch 64: DDP and FSDP2",
        recipe=Recipe(model=QWEN3_8B, seq_len=2048, global_batch=64, adapter="lora_16", learning_rate=2e-4),
        axes={**base.axes, "zero_stage": (0, 3, 2), "engine": engines.adapting()},
        narrowed={**base.narrowed, **dict.fromkeys(("engine", "zero_stage", *untried), "what trains adapters")},
        model_parallel={axis: values for axis, values in base.model_parallel.items() if axis not in untried},
    )
    return dataclasses.replace(space, miniature=stand_in(space))


def qwen3_30b_a3b() -> Space:
    """Returns Qwen3 30B-A3B at sequence 4096 with the axes of `llama3_8b`, under forced balance."""
    space = dataclasses.replace(
        llama3_8b(),
        name="qwen3_30b_a3b",
        summary="Qwen3 30B-A3B, 128 experts, sequence 4096, global batch 512: FSDP2 and ZeRO, pipelines",
        recipe=Recipe(model=QWEN3_30B_A3B, seq_len=4096, global_batch=512),
    )
    space = with_experts(space)
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=2))
