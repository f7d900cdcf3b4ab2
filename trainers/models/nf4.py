"""Frozen linear layers with weights in NF4 (`trainers.spec.nf4`): quantisation, and dequantisation for each product.

The parts of a weight are plain tensors, cut by rows: FSDP2 shards and gathers them as bytes for any number of ranks,
and compiled code dequantises in one kernel. torchao's NF4 tensor has the same numbers, bit for bit in bf16, but its
shards hold whole blocks of scales, and the compiler skips it.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainers.spec.nf4 import BLOCK, CODES, FACTORS, PIECE, SCALES, scales_of_factor

# fmt: off
_LEVELS = (
    -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
    0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0,
)
# fmt: on
"""Quantiles of a normal distribution, rounded as in torchao (`nf4_tensor.py`)."""
_PAIRS = "nf4_pairs"
"""Name of a layer's buffer with the two levels of each byte, [256, 2]."""


def quantised(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the parts of a weight [rows, width] by name; needs memory for these and a few pieces. Parts are NaN if
    all scales of a factor equal the mean, as with weights that are all zero.
    """
    dtype, blocks = weight.dtype, weight.reshape(-1, BLOCK)
    scales = blocks.abs().amax(1)
    mean = scales.double().mean().to(dtype)  # equal on every kind of device
    groups = (scales - mean).view(-1, scales_of_factor(weight.numel()))
    factors = 256 / (2 * groups.abs().amax(1))
    rounded = (groups * factors[:, None]).round().clamp(-128, 127).to(torch.int8)
    levels = torch.tensor(_LEVELS, dtype=dtype, device=weight.device)
    codes = torch.empty(len(blocks), BLOCK // 2, dtype=torch.uint8, device=weight.device)
    for first in range(0, len(blocks), PIECE // BLOCK):
        piece = slice(first, first + PIECE // BLOCK)
        nearest = ((blocks[piece] / scales[piece, None])[..., None] - levels).abs().argmin(-1).to(torch.uint8)
        codes[piece] = nearest[:, ::2] << 4 | nearest[:, 1::2]
    rows = weight.shape[0]
    return {CODES: codes.view(rows, -1), SCALES: rounded.view(rows, -1), FACTORS: torch.cat([factors, mean[None]])}


def dequantised(
    codes: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, pairs: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the weight [rows, width] of these parts, in the factors' type."""
    pairs = _pairs(factors) if pairs is None else pairs
    of_block = (scales.view(factors.shape[0] - 1, -1) / factors[:-1, None]).to(factors.dtype) + factors[-1]
    levels = pairs[codes.view(-1).int()].view(-1, BLOCK)
    return (levels * of_block.view(-1, 1)).view(codes.shape[0], -1)


def _pairs(like: torch.Tensor) -> torch.Tensor:
    levels = torch.tensor(_LEVELS, dtype=like.dtype, device=like.device)
    return torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)


class _Product(torch.autograd.Function):
    """A product with a frozen weight; the backward pass dequantises it again instead of saving it."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, transposed: bool, *parts: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parts)
        ctx.transposed = transposed
        weight = dequantised(*parts).to(input.dtype)
        return input @ weight if transposed else F.linear(input, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        codes, scales, factors, pairs = ctx.saved_tensors
        if torch.compiler.is_compiling():
            # The compiler would keep the forward pass's weight, 4 times as large as its parts, because it sees the same
            # computation. Levels that seem to depend on the gradient exist only in the backward pass.
            first = gradient.flatten()[:1]
            pairs = torch.where(first == first, pairs, pairs)
        weight = dequantised(codes, scales, factors, pairs).to(gradient.dtype)
        return (gradient @ (weight.t() if ctx.transposed else weight), *(None for _ in range(5)))


def product(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """Returns the output of a layer in NF4 with its bias, without its adapter."""
    parts = (getattr(layer, name) for name in (CODES, SCALES, FACTORS, _PAIRS))
    # Transformers' Conv1D is not named here, because workers import it by stubs.
    transposed = not isinstance(layer, nn.Linear)
    output: torch.Tensor = _Product.apply(input, transposed, *parts)
    return output if layer.bias is None else output + layer.bias.to(output.dtype)


def awaits_quantising(layer: nn.Module) -> bool:
    """Returns whether the layer's weight is to be quantised to NF4 and still is as drawn."""
    return hasattr(layer, "in_nf4") and hasattr(layer, "weight")


def quantise(layer: Any) -> None:
    """Replaces a layer's weight by its parts in NF4."""
    parts = quantised(layer.weight.detach())
    del layer.weight
    for name, part in parts.items():
        setattr(layer, name, nn.Parameter(part, requires_grad=False))
    layer.register_buffer(_PAIRS, _pairs(parts[FACTORS]), persistent=False)


def is_in_nf4(layer: nn.Module) -> bool:
    """Returns whether the layer's weight exists in NF4 only."""
    codes = getattr(layer, CODES, None)
    return codes is not None and codes.dtype == torch.uint8 and not hasattr(layer, "weight")


def multiply(factors: torch.Tensor, factor: float, *, offset: int, length: int) -> None:
    """Multiplies a weight by `factor` in place, through its factors and mean. `factors` are the `length` factors from
    `offset` on.
    """
    mean = max(0, length - 1 - offset)
    factors[:mean].div_(factor)
    factors[mean:].mul_(factor)


def quantised_parts(path: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parts of the weight of the layer at `path`, by parameter name.

    Raises:
        ValueError: the scales of a factor's blocks are all equal, so the parts are no numbers.
    """
    parts = quantised(weight)
    if not torch.isfinite(parts[FACTORS]).all():
        raise ValueError(
            f"{path}.weight cannot be in NF4, {BLOCK} times {scales_of_factor(weight.numel())} of its values have"
            " scales that do not differ, as zeros have: choose an adapter lora_..."
        )
    yield from ((f"{path}.{name}", part) for name, part in parts.items())
