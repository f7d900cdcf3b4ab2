"""Ministral 3: Mistral with queries scaled by position beyond the original length, before rotary positions were
stretched.
"""

from trainers.spec.architectures.windows import WindowInEveryBlock

ARCHITECTURE = WindowInEveryBlock(
    name="ministral3",
    config_defaults={"num_key_value_heads": 8, "head_dim": 128},
)
