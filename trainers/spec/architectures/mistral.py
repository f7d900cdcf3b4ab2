"""Mistral and Ministral: Llama with a sliding window in every block or in none."""

from trainers.spec.architectures.windows import WindowInEveryBlock

ARCHITECTURE = WindowInEveryBlock(
    name="mistral",
    default_window=4096,
    config_defaults={"num_key_value_heads": 8},
)
