"""Qwen1.5 and Qwen2 with experts: biases of queries, keys and values, and a shared expert with its own gate beside the
chosen experts.
"""

from trainers.spec.architectures.llama_like import KEYS
from trainers.spec.architectures.with_experts import WithExperts

ARCHITECTURE = WithExperts(
    name="qwen2_moe",
    query_key_value_bias=True,
    config_keys={
        **KEYS,
        "ffn_size": ("moe_intermediate_size",),
        "num_experts": ("num_experts", "num_local_experts"),
        "experts_per_token": ("num_experts_per_tok",),
        "shared_ffn_size": ("shared_expert_intermediate_size",),
        "norm_topk_prob": ("norm_topk_prob",),
    },
    counted_with={"qkv_bias": True},
    trained_with={
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
    },
    config_defaults={
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
)
