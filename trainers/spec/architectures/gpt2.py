"""GPT-2: learned positions, LayerNorm, biases, one tied table.

If `ModelSpec.embedding_norm` is set, a norm of token and position embeddings replaces their dropout.
"""

from trainers.spec.architectures.architecture import Architecture, StepwiseActivation

ARCHITECTURE = Architecture(
    name="gpt2",
    kernels="trainers.kernels.gpt2",
    position="learned",
    norm_vectors=2,
    bias=True,
    gated=False,
    tied=True,
    embedding_norm=False,
    config_keys={
        "num_layers": ("n_layer", "num_hidden_layers"),
        "hidden_size": ("n_embd", "hidden_size"),
        "num_heads": ("n_head", "num_attention_heads"),
        "vocab_size": ("vocab_size",),
        "ffn_size": ("n_inner",),
        "max_positions": ("n_positions", "max_position_embeddings"),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    counted_with={"add_cross_attention": False},
    config_defaults={"n_inner": None},  # 4 x n_embd
    # With a pad token, each forward pass would search the tokens for padding, and the host would wait for the device.
    config_overrides={"pad_token_id": None},
    embeddings=("transformer.wte", "transformer.wpe", "transformer.drop"),
    norm_place="transformer.drop",
    blocks="transformer.h",
    final_norm="transformer.ln_f",
    head="lm_head",
    tensor_parallel={
        "attn.c_attn": "colwise",
        "attn.c_proj": "rowwise",
        "mlp.c_fc": "colwise",
        "mlp.c_proj": "rowwise",
    },
    stacked={"attn.c_attn": 3},
    float8_refusal="torchao converts nn.Linear alone to FP8, the blocks of gpt2 are transformers' Conv1D",
    head_sizes=("num_heads", "embed_dim", "split_size"),
    fp32_softmax=False,
    fused_mlp={"activation_function": ("gelu_new", "gelu_pytorch_tanh")},
    # `NewGELUActivation` runs 8 kernels, and autograd's of each. Besides input and output, autograd saves the tanh,
    # half the input, and 1 + tanh.
    stepwise_activation=StepwiseActivation(
        forward_accesses=18.0, backward_accesses=28.0, saved_tensors=5.0, takes_power=True
    ),
)
