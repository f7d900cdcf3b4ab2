"""The feed-forward block with GELU inside its products, by quack-kernels for GPUs of Hopper and later.

Forward, the first product writes its result and the result's GELU. Backward, the gradient by the second product's input
is multiplied by GELU's derivative while it is written, and the GELU of the saved result is written beside it. So two
passes over values of inner width are saved, and only one tensor of that width is kept.

GELU is the tanh approximation, applied to the fp32 sums, which a plain block first rounds to 16 bits. On a CPU the two
operations use torch, for tests only; no layout chooses them there.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ACTIVATION = "gelu_tanh_approx"


@torch.library.custom_op("layout::gelu_of_product", mutates_args=(), device_types="cuda")
def gelu_of_product(rows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `rows` [tokens, hidden] @ `weight` [hidden, inner] + `bias`, and its GELU, both [tokens, inner]."""
    from quack.gemm_interface import gemm_act  # pyright: ignore[reportMissingImports]

    return gemm_act(rows, weight, bias=bias, activation=_ACTIVATION, tuned=False)


@torch.library.custom_op("layout::gelu_gradient", mutates_args=(), device_types="cuda")
def gelu_gradient(gradient: Tensor, weight: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient by `before` and the GELU of `before`, both [tokens, inner].

    `gradient` [tokens, hidden] is the gradient by the second product; `weight` [hidden, inner] is the transpose of that
    product's weight.
    """
    from quack.gemm_interface import gemm_dact  # pyright: ignore[reportMissingImports]

    return gemm_dact(gradient, weight, before, activation=_ACTIVATION, tuned=False)


@gelu_of_product.register_kernel("cpu")  # pyright: ignore[reportUntypedFunctionDecorator]
def _gelu_of_product(rows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.addmm(bias, rows, weight)
    return before, F.gelu(before, approximate="tanh")


@gelu_gradient.register_kernel("cpu")  # pyright: ignore[reportUntypedFunctionDecorator]
def _gelu_gradient(gradient: Tensor, weight: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    by_before = torch.ops.aten.gelu_backward(gradient @ weight, before, approximate="tanh")
    return by_before, F.gelu(before, approximate="tanh")


@gelu_of_product.register_fake
def _(rows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    shape = (rows.shape[0], weight.shape[1])
    return rows.new_empty(shape), rows.new_empty(shape)


@gelu_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(before), torch.empty_like(before)


class FusedMlp:
    """Marks a feed-forward module that computes by `gelu_mlp`."""


def fuse(model: nn.Module, plain: type[nn.Module], fused: type[nn.Module]) -> None:
    """Replaces the class of every `plain` feed-forward module in place by `fused`; assumes no dropout."""
    for module in model.modules():
        if type(module) is plain:
            module.__class__ = fused


def gelu_mlp(hidden: Tensor, up: nn.Module, down: nn.Module) -> Tensor:
    """Returns `down(GELU(up(hidden)))` for `hidden` [batch, seq_len, hidden]. `up` and `down` are `nn.Linear` or
    transformers' `Conv1D` (transposed weights), both with a bias.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    rows, *weights = (
        tensor.to(dtype) for tensor in (hidden.flatten(0, -2), up.weight, up.bias, down.weight, down.bias)
    )
    apply: Any = _GeluMlp.apply
    return apply(rows, *weights, isinstance(up, nn.Linear)).view(hidden.shape)


class _GeluMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, is_linear: bool
    ) -> Tensor:
        before, after = gelu_of_product(rows, up.t() if is_linear else up, up_bias)
        ctx.save_for_backward(rows, up, down, before)
        ctx.is_linear = is_linear
        return torch.addmm(down_bias, after, down.t() if is_linear else down)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, up, down, before = ctx.saved_tensors
        if ctx.is_linear:
            by_before, after = gelu_gradient(gradient, down, before)
            by_rows, by_up, by_down = by_before @ up, by_before.t() @ rows, gradient.t() @ after
        else:
            by_before, after = gelu_gradient(gradient, down.t(), before)
            by_rows, by_up, by_down = by_before @ up.t(), rows.t() @ by_before, after.t() @ gradient
        return by_rows, by_up, by_before.sum(0), by_down, gradient.sum(0), None
