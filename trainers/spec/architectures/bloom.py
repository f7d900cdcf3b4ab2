"""BLOOM: ALiBi, a norm after the embedding, a feed-forward block of 4 x hidden_size, one tied table."""

import dataclasses
from typing import TYPE_CHECKING

from trainers.spec.architectures.architecture import Architecture, StepwiseActivation

if TYPE_CHECKING:
    from torch import nn

    from trainers.kernels.attention import Share
    from trainers.spec.layout_axes import Attention
    from trainers.spec.model import ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Bloom(Architecture):
    def use_attention(self, model: "nn.Module", spec: "ModelSpec", attention: "Attention") -> None:
        if attention != "eager":
            from trainers.kernels import bloom  # imports torch and transformers' code of BLOOM

            bloom.use_kernel(model, spec.num_heads, attention)

    def share_attention(self, module: "nn.Module", share: "Share") -> None:
        from trainers.kernels import bloom

        bloom.share_attention(module, share)

    def fuse_mlp(self, model: "nn.Module") -> None:
        from trainers.kernels import bloom

        bloom.fuse_mlp(model)

    def attention_in_effect(self, model: "nn.Module", configured: str) -> str:
        from trainers.kernels import bloom

        return bloom.attention_in_effect(model, configured)


ARCHITECTURE = _Bloom(
    name="bloom",
    position="alibi",
    norm_vectors=2,
    bias=True,
    gated=False,
    tied=True,
    embedding_norm=True,
    config_keys={
        "num_layers": ("n_layer", "num_hidden_layers"),
        "hidden_size": ("hidden_size", "n_embed"),
        "num_heads": ("n_head", "num_attention_heads"),
        "vocab_size": ("vocab_size",),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    embeddings=("transformer.word_embeddings", "transformer.word_embeddings_layernorm"),
    blocks="transformer.h",
    final_norm="transformer.ln_f",
    head="lm_head",
    tensor_parallel={
        "self_attention.query_key_value": "colwise",
        "self_attention.dense": "rowwise",
        "mlp.dense_h_to_4h": "colwise",
        "mlp.dense_4h_to_h": "rowwise",
    },
    head_sizes=("num_heads", "hidden_size", "split_size"),
    fused_mlp={},
    # `bloom_gelu_forward` and `bloom_gelu_back`: 9 and 18 kernels. A function of its own, which saves its input alone.
    stepwise_activation=StepwiseActivation(forward_accesses=21.0, backward_accesses=44.0, saved_tensors=2.0),
)
