"""`LlamaLike`: defaults shared by Llama and the families derived from it; a family's declaration overrides them."""

import dataclasses
from collections.abc import Mapping

from trainers.spec.architectures.architecture import Architecture, Cutting, Position, StepwiseActivation

KEYS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_heads": ("num_attention_heads",),
    "vocab_size": ("vocab_size",),
    "ffn_size": ("intermediate_size",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim",),
    "max_positions": ("max_position_embeddings",),
    "init_std": ("initializer_range",),
    "tied_embeddings": ("tie_word_embeddings",),
}
KEYS_WITH_ATTENTION_BIAS: Mapping[str, tuple[str, ...]] = {**KEYS, "attention_bias": ("attention_bias",)}
"""`KEYS` for families whose linear layers of attention may have biases."""
ATTENTION_CUT: Mapping[str, Cutting] = {
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.o_proj": "rowwise",
}
_CUT: Mapping[str, Cutting] = {
    **ATTENTION_CUT,
    "mlp.gate_proj": "colwise",
    "mlp.up_proj": "colwise",
    "mlp.down_proj": "rowwise",
}
UNGATED_CUT: Mapping[str, Cutting] = {path: cut for path, cut in _CUT.items() if path != "mlp.gate_proj"}
# `ReLUSquaredActivation` under autocast, which computes the square (a power) in fp32: ReLU, the cast of its result, the
# square and the cast back, and autograd's kernels of each. Saved: ReLU's result in both types, and the square.
SQUARED_RELU = StepwiseActivation(forward_accesses=12.0, backward_accesses=23.0, saved_tensors=4.0)
"""Costs of a squared ReLU, in values of two bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LlamaLike(Architecture):
    """Rotary positions, RMSNorm, no biases, a gated feed-forward block, grouped key/value heads."""

    position: Position = "rotary"
    norm_vectors: int = 1
    bias: bool = False
    gated: bool = True
    tied: bool = False
    embedding_norm: bool = False
    config_keys: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: KEYS)
    embeddings: tuple[str, ...] = ("model.embed_tokens",)
    blocks: str = "model.layers"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    tensor_parallel: Mapping[str, Cutting] = dataclasses.field(default_factory=lambda: _CUT)
