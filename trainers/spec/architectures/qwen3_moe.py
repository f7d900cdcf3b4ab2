"""Qwen3 with experts: Qwen3's heads and norms, experts in every block."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS
from trainers.spec.architectures.with_experts import WithExperts

ARCHITECTURE = WithExperts(
    name="qwen3_moe",
    query_key_norm="head",
    config_keys={
        **KEYS_WITH_ATTENTION_BIAS,
        "ffn_size": ("moe_intermediate_size",),
        "num_experts": ("num_experts", "num_local_experts"),
        "experts_per_token": ("num_experts_per_tok",),
        "norm_topk_prob": ("norm_topk_prob",),
    },
    trained_with={
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
    },
    config_defaults={
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
)
