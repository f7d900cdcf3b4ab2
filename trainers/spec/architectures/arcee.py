"""Arcee's AFM: Llama with two matrices in the feed-forward block and a squared ReLU between them."""

from trainers.spec.architectures.llama_like import (
    KEYS_WITH_ATTENTION_BIAS,
    SQUARED_RELU,
    UNGATED_CUT,
    LlamaLike,
)

ARCHITECTURE = LlamaLike(
    name="arcee",
    gated=False,
    config_keys={**KEYS_WITH_ATTENTION_BIAS, "mlp_bias": ("mlp_bias",)},
    tensor_parallel=UNGATED_CUT,
    stepwise_activation=SQUARED_RELU,
)
