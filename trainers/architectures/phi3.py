"""Phi-3 and Phi-4: Llama with one matrix for queries, keys and values and one for gate and up, with a window or not."""

from trainers.architectures.windows import WindowInEveryBlock

ARCHITECTURE = WindowInEveryBlock(
    name="phi3",
    position="rotary",
    norm_vectors=1,
    bias=False,
    gated=True,
    tied=False,
    embedding_norm=False,
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
    embeddings=("model.embed_tokens",),
    blocks="model.layers",
    final_norm="model.norm",
    head="lm_head",
    tensor_parallel={"self_attn.qkv_proj": "colwise", "self_attn.o_proj": "rowwise"},
    tensor_parallel_refusal="phi3 cuts queries, keys and values out of one product by the sizes of the whole model",
)
