"""Nemotron and Minitron: Llama with a LayerNorm that multiplies by 1 + weight, partly rotated heads, two matrices in
the feed-forward block, and a squared ReLU between them.
"""

from trainers.spec.architectures.llama_like import (
    KEYS_WITH_ATTENTION_BIAS,
    SQUARED_RELU,
    UNGATED_CUT,
    LlamaLike,
)

ARCHITECTURE = LlamaLike(
    name="nemotron",
    rotary_share=0.5,
    norm_vectors=2,
    norm_start=0.0,
    gated=False,
    config_keys={**KEYS_WITH_ATTENTION_BIAS, "mlp_bias": ("mlp_bias",)},
    tensor_parallel=UNGATED_CUT,
    stepwise_activation=SQUARED_RELU,
)
