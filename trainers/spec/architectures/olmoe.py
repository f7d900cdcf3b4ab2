"""OLMoE: queries and keys normed over all heads, norms before attention and experts, experts in every block."""

from trainers.spec.architectures.experts import WithExperts
from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS

ARCHITECTURE = WithExperts(
    name="olmoe",
    query_key_norm="all heads",
    config_keys={
        **{field: keys for field, keys in KEYS_WITH_ATTENTION_BIAS.items() if field != "head_width"},
        "num_experts": ("num_experts", "num_local_experts"),
        "experts_per_token": ("num_experts_per_tok",),
        "norm_topk_prob": ("norm_topk_prob",),
    },
    trained_with={"clip_qkv": None, "output_router_logits": False},
    config_defaults={"num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 2048},
)
