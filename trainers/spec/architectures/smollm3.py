"""SmolLM3: Llama with a tied table, and without rotary positions in every fourth block."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="smollm3",
    tied=True,
    config_keys={**KEYS_WITH_ATTENTION_BIAS, "mlp_bias": ("mlp_bias",)},
    config_defaults={"num_key_value_heads": 4},
    # transformers would put the window into blocks without rotation; no published model has one.
    trained_with={"use_sliding_window": False},
)
