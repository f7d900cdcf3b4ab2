"""Mixtral: Mistral with experts in every block, whose weights for a token sum up to 1."""

from trainers.spec.architectures.experts import WithExperts
from trainers.spec.architectures.llama_like import KEYS

ARCHITECTURE = WithExperts(
    name="mixtral",
    config_keys={
        **KEYS,
        "num_experts": ("num_local_experts", "num_experts"),
        "experts_per_token": ("num_experts_per_tok",),
    },
    trained_with={"sliding_window": None, "router_jitter_noise": 0.0, "output_router_logits": False},
    config_defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 14_336,
    },
)
