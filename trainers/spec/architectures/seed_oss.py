"""Seed-OSS: Llama with biases of queries, keys and values, a stated head width, and optional other biases."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="seed_oss",
    output_bias=False,
    config_keys={**KEYS_WITH_ATTENTION_BIAS, "mlp_bias": ("mlp_bias",)},
    config_defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    counted_with={"attention_out_bias": False},
)
