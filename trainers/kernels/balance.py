"""Balances a router over the tokens of a whole step, by the gradient of a balance loss or by biases on its choice.

With E experts, f_i the share of the step's tokens that choose expert i and P_i the mean of its probability over them, a
block's loss is E * sum(f_i * P_i) (arXiv 2101.03961, equations 4 to 6), which is least for equally loaded experts. f
and P are of the global batch (arXiv 2501.11873, section 3), and the model's loss gets the mean over its blocks. f has
no gradient, so the loss is linear in the probabilities and its gradient needs only f.

Biases are added to the probabilities when experts are chosen, but not to their weights. Each step adds a constant to
the biases of experts with fewer tokens than the mean and subtracts it from the others (arXiv 2408.15664, algorithm 1).
"""

from typing import Any

import torch
from torch import Tensor, nn

from trainers.spec.recipe_axes import BalanceLoss

LOAD, SCALE, BIAS = "balance_load", "balance_scale", "balance_bias"
"""Buffers of a router: the balance loss's gradient by its mean probabilities, fp32 [experts]; the factor of a
micro-batch's losses before differentiation, 0-dim; and the biases of its choice, fp32 [experts].
"""


def make_even(router: Any, balance_loss: BalanceLoss) -> None:
    """Adds the buffers of its balance loss to a router, filled with zeros, which change nothing."""
    sizes = {"aux": {LOAD: (router.num_experts,), SCALE: ()}, "bias": {BIAS: (router.num_experts,)}}
    for name, shape in sizes.get(balance_loss, {}).items():
        router.register_buffer(name, torch.zeros(shape, dtype=torch.float32, device="cpu"), persistent=False)


def choose(router: Any, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the probabilities and indices [tokens, chosen] of the experts that a router chooses."""
    if (load := getattr(router, LOAD, None)) is not None:
        apply: Any = _WithLoss.apply
        probabilities = apply(probabilities, load, getattr(router, SCALE))
    if (bias := getattr(router, BIAS, None)) is None:
        chosen = torch.topk(probabilities, router.top_k, dim=-1)
        return chosen.values, chosen.indices
    indices = torch.topk(probabilities.detach() + bias, router.top_k, dim=-1).indices
    return probabilities.gather(-1, indices), indices


def balance_in_effect(routers: list[nn.Module]) -> str:
    """Returns the recipe's name for the balance loss of these routers."""
    buffers: dict[str, str] = {"aux": LOAD, "bias": BIAS}
    words = {
        next((word for word, name in buffers.items() if getattr(router, name, None) is not None), "none")
        for router in routers
    }
    return "+".join(sorted(words)) or "none"


class _WithLoss(torch.autograd.Function):
    """Returns probabilities [tokens, experts] unchanged, and adds the balance loss's gradient to their gradient."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, load: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(load, scale)
        return probabilities.view_as(probabilities)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        load, scale = ctx.saved_tensors
        (gradient,) = gradients
        if torch.compiler.is_compiling():
            # Their values are set between the two passes; the compiler would multiply them in the forward pass already.
            first = gradient.flatten()[:1]
            load = torch.where(first == first, load, load)
        return gradient + load * (scale / max(1, len(gradient))), None, None
