"""Hunyuan's dense models: Llama with a norm of each head of queries and keys after rotation."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="hunyuan_v1_dense",
    query_key_norm="head",
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    config_defaults={"head_dim": None},  # transformers' attention has no default of its own for it
)
