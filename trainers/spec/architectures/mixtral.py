"""Mixtral: Mistral with experts in every block; a token's expert weights sum to 1."""

from trainers.spec.architectures.llama_like import KEYS
from trainers.spec.architectures.with_experts import WithExperts

_EXPERT = "block_sparse_moe.experts.{expert}."

ARCHITECTURE = WithExperts(
    name="mixtral",
    config_keys={
        **KEYS,
        "num_experts": ("num_local_experts", "num_experts"),
        "experts_per_token": ("num_experts_per_tok",),
    },
    trained_with={"sliding_window": None, "router_jitter_noise": 0.0, "output_router_logits": False},
    stored_in_parts={
        "mlp.gate.weight": ("block_sparse_moe.gate.weight",),
        "mlp.experts.gate_up_proj": (f"{_EXPERT}w1.weight", f"{_EXPERT}w3.weight"),
        "mlp.experts.down_proj": (f"{_EXPERT}w2.weight",),
    },
    config_defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 14_336,
    },
)
