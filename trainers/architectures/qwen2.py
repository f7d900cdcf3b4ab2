"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values, and a window in later blocks on request."""

from trainers.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="qwen2",
    position="rotary",
    norm_vectors=1,
    bias=False,
    gated=True,
    tied=False,
    embedding_norm=False,
    query_key_value_bias=True,
    switch="use_sliding_window",
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
    config_defaults={"num_key_value_heads": 32},
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
)
