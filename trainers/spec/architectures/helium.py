"""Helium: Llama with rotary positions on neighbouring values of a head."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="helium",
    output_bias=False,
    config_keys={**KEYS_WITH_ATTENTION_BIAS, "mlp_bias": ("mlp_bias",)},
    config_defaults={"num_key_value_heads": 20, "head_dim": 128},
)
