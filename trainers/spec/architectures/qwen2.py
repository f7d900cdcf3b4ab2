"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values, and an optional window in later blocks."""

from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="qwen2",
    query_key_value_bias=True,
    switch="use_sliding_window",
    config_defaults={"num_key_value_heads": 32},
)
