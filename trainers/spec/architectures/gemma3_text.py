"""Gemma 3's text model: windowed blocks between global ones, four norms a block, a scaled and tied embedding table."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS
from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="gemma3_text",
    tied=True,
    query_key_norm="head",
    block_norms=4,
    norm_start=0.0,
    global_every=6,
    config_keys={**KEYS_WITH_ATTENTION_BIAS, "logit_softcap": ("final_logit_softcapping",)},
    config_defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
    # transformers reads attn_logit_softcapping but never passes it to the attention of Gemma 3.
    trained_with={"attn_logit_softcapping": None, "use_bidirectional_attention": False},
    code="gemma3",
)
