"""OLMo 2: norms after attention and feed-forward in place of before them, queries and keys normed over all heads."""

from trainers.architectures.architecture import Architecture

ARCHITECTURE = Architecture(
    name="olmo2",
    position="rotary",
    norm_vectors=1,
    bias=False,
    gated=True,
    tied=False,
    embedding_norm=False,
    query_key_norm="all heads",
    config_keys={
        "num_layers": ("num_hidden_layers",),
        "hidden_size": ("hidden_size",),
        "num_heads": ("num_attention_heads",),
        "vocab_size": ("vocab_size",),
        "ffn_size": ("intermediate_size",),
        "num_kv_heads": ("num_key_value_heads",),
        "max_positions": ("max_position_embeddings",),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    counted_with={"attention_bias": False},
    embeddings=("model.embed_tokens",),
    blocks="model.layers",
    final_norm="model.norm",
    head="lm_head",
    tensor_parallel={
        "self_attn.q_proj": "colwise",
        "self_attn.k_proj": "colwise",
        "self_attn.v_proj": "colwise",
        "self_attn.o_proj": "rowwise",
        "mlp.gate_proj": "colwise",
        "mlp.up_proj": "colwise",
        "mlp.down_proj": "rowwise",
    },
    tensor_parallel_refusal="olmo2 norms queries and keys over all heads at once, of which a rank would have a part",
)
