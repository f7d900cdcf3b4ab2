"""GPT-OSS 20B (https://huggingface.co/openai/gpt-oss-20b): 32 experts in every block, a window of 128 tokens in every
second one, and attention sinks. It is published in four bits, but searched and trained in the recipe's types.
"""

import dataclasses
from typing import Any

from search_spaces.experts import with_experts
from search_spaces.llama3 import llama3_8b
from search_spaces.miniature import stand_in
from search_spaces.space import Space
from search_spaces.variations import variations
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_CONFIG: dict[str, Any] = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "rope_type": "yarn",
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "rope_theta": 150_000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201_088,
}
GPT_OSS_20B = ModelSpec.from_config(_CONFIG, name="gpt-oss-20b")
"""20,914,757,184 parameters, of which a token uses 4,187,440,704;
https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json.
"""


def gpt_oss_20b() -> Space:
    """Returns GPT-OSS 20B at sequence 4096 with the axes of `llama3_8b`, under forced balance. Only FlexAttention is
    fused with sinks.
    """
    base = llama3_8b()
    space = dataclasses.replace(
        base,
        name="gpt_oss_20b",
        summary="GPT-OSS 20B, 32 experts, sequence 4096, global batch 512: FSDP2 and ZeRO, pipelines",
        recipe=Recipe(model=GPT_OSS_20B, seq_len=4096, global_batch=512),
        axes={**base.axes, "attention": ("flex", "eager")},
        variations=variations("flex", "eager"),
        model_parallel={**base.model_parallel, "attention": ("flex",)},
    )
    space = with_experts(space)
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=2))
