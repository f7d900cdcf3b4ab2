"""Qwen3: Llama with a norm of each head of queries and keys, and heads of a width of their own."""

from trainers.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="qwen3",
    position="rotary",
    norm_vectors=1,
    bias=False,
    gated=True,
    tied=False,
    embedding_norm=False,
    query_key_norm="head",
    switch="use_sliding_window",
    config_keys={
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
    },
    config_defaults={"num_key_value_heads": 32, "head_dim": 128},
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
)
