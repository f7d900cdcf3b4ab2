"""Qwen3: Llama with a norm of each head of queries and keys, and a stated head width."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS
from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="qwen3",
    query_key_norm="head",
    switch="use_sliding_window",
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    config_defaults={"num_key_value_heads": 32, "head_dim": 128},
)
