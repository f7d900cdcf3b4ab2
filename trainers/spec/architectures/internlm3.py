"""InternLM3: Llama with other config keys for its biases, which either all linear layers of a block have or none."""

from trainers.spec.architectures.llama_like import KEYS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="internlm3",
    code="llama",
    config_keys={**KEYS, "attention_bias": ("qkv_bias", "attention_bias"), "mlp_bias": ("bias", "mlp_bias")},
    config_defaults={"num_key_value_heads": 2, "head_dim": 128},
)
