"""GPT-NeoX and Pythia: rotary positions, LayerNorm, biases, an untied head."""

from trainers.spec.architectures.architecture import Architecture

ARCHITECTURE = Architecture(
    name="gpt_neox",
    position="rotary",
    norm_vectors=2,
    rotary_share=0.25,
    bias=True,
    gated=False,
    tied=False,
    embedding_norm=False,
    config_keys={
        "num_layers": ("num_hidden_layers",),
        "hidden_size": ("hidden_size",),
        "num_heads": ("num_attention_heads",),
        "vocab_size": ("vocab_size",),
        "ffn_size": ("intermediate_size",),
        "max_positions": ("max_position_embeddings",),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    counted_with={"attention_bias": True},
    embeddings=("gpt_neox.embed_in",),
    blocks="gpt_neox.layers",
    final_norm="gpt_neox.final_layer_norm",
    head="lm_head",
    stored_as={"lm_head.weight": "embed_out.weight"},
    tensor_parallel={
        "attention.query_key_value": "colwise",
        "attention.dense": "rowwise",
        "mlp.dense_h_to_4h": "colwise",
        "mlp.dense_4h_to_h": "rowwise",
    },
)
