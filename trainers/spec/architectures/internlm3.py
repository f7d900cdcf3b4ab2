"""InternLM3: Llama by other names of its biases, which all linear layers of a block have, or none has."""

from trainers.spec.architectures.llama_like import KEYS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="internlm3",
    code="llama",
    config_keys={**KEYS, "attention_bias": ("qkv_bias", "attention_bias"), "mlp_bias": ("bias", "mlp_bias")},
    config_defaults={"num_key_value_heads": 2, "head_dim": 128},
)
