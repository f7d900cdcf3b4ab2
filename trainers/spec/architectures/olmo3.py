"""OLMo 3: OLMo 2 with a sliding window in three of four blocks."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS
from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="olmo3",
    query_key_norm="all heads",
    global_every=4,
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    tensor_parallel_refusal="olmo3 norms queries and keys over all heads at once, of which a rank would have a part",
)
