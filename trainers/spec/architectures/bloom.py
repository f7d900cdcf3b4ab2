"""BLOOM: ALiBi, a norm after the embedding, a feed-forward block of 4 x hidden_size, one tied table."""

from trainers.spec.architectures.architecture import Architecture, StepwiseActivation

ARCHITECTURE = Architecture(
    name="bloom",
    kernels="trainers.kernels.bloom",
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
    # `bloom_gelu_forward` runs 9 kernels and `bloom_gelu_back` 18, in an autograd function that saves only its input.
    stepwise_activation=StepwiseActivation(forward_accesses=21.0, backward_accesses=44.0, saved_tensors=2.0),
)
