"""Llama: rotary positions, RMSNorm, no biases, a gated feed-forward block, grouped key/value heads."""

from trainers.spec.architectures.llama_like import LlamaLike

ARCHITECTURE = LlamaLike(
    name="llama",
    counted_with={"attention_bias": False, "mlp_bias": False},
)
