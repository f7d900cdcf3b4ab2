"""OLMo 2: norms after attention and feed-forward block instead of before, queries and keys normed over all heads."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="olmo2",
    query_key_norm="all heads",
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    tensor_parallel_refusal="olmo2 norms queries and keys over all heads at once, of which a rank would have a part",
)
