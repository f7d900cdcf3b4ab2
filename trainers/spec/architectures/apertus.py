"""Apertus: Llama with norms of queries and keys by head, and xIELU (arXiv 2411.13010) between two matrices."""

from trainers.spec.architectures.architecture import StepwiseActivation
from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, UNGATED_CUT, LlamaLike

# Under autocast the square of a positive value and the exponential of a negative one are in fp32, with all that
# follows. Saved are the input, its product with the parameter, the two halves before and after it, the mask of the sign
# and the output.
_XIELU = StepwiseActivation(forward_accesses=51.0, backward_accesses=108.0, saved_tensors=8.5)

ARCHITECTURE = LlamaLike(
    name="apertus",
    gated=False,
    query_key_norm="head",
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    counted_with={"hidden_act": "xielu"},
    # In fp32 as transformers computes them: their softplus is 0.8 and 0.3, to which xIELU adds 0.5.
    learned_numbers={"mlp.act_fn.alpha_p": 0.20338237285614014, "mlp.act_fn.alpha_n": -1.0502256155014038},
    tensor_parallel=UNGATED_CUT,
    stepwise_activation=_XIELU,
)
