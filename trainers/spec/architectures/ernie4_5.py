"""ERNIE 4.5: Llama with a tied table, rotary positions on neighbouring values of a head, and optional biases."""

from trainers.spec.architectures.llama_like import KEYS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="ernie4_5",
    tied=True,
    config_keys={**KEYS, "attention_bias": ("use_bias",), "mlp_bias": ("use_bias",)},
    config_defaults={"num_key_value_heads": 2, "head_dim": 128},
)
