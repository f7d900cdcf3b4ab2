"""Frozen linear layers whose weights are in NF4 (`trainers.spec.nf4`): quantised, and dequantised for each product.

The parts of a weight are plain tensors, cut by rows: FSDP2 shards and gathers them for any number of ranks, as bytes,
and compiled code makes one kernel of the dequantisation. torchao's own tensor, whose numbers these are bit for bit in
bf16, does neither: its shards hold whole blocks of scales, and the compiler steps around it.
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
"""Quantiles of a normal distribution, as torchao rounds them (`nf4_tensor.py`)."""
_PAIRS = "nf4_pairs"
"""Buffer of a layer: the two levels of each byte, [256, 2]."""


def quantised(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the parts of a weight [rows, width] by their names; beside it memory holds these and some pieces. Where
    all scales of a factor are the mean, as those of zeros are, parts are no numbers.
    """
    dtype, blocks = weight.dtype, weight.reshape(-1, BLOCK)
    scales = blocks.abs().amax(1)
    mean = scales.double().mean().to(dtype)  # the same on every kind of device
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
    """Returns the weight [rows, width] of these parts, in the type of the factors."""
    pairs = _pairs(factors) if pairs is None else pairs
    of_block = (scales.view(factors.shape[0] - 1, -1) / factors[:-1, None]).to(factors.dtype) + factors[-1]
    levels = pairs[codes.view(-1).int()].view(-1, BLOCK)
    return (levels * of_block.view(-1, 1)).view(codes.shape[0], -1)


def _pairs(like: torch.Tensor) -> torch.Tensor:
    levels = torch.tensor(_LEVELS, dtype=like.dtype, device=like.device)
    return torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)


class _Product(torch.autograd.Function):
    """A product with a frozen weight, which the backward pass dequantises anew instead of keeping it."""

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
            # The compiler would keep the forward pass's weight, 4 times as large as its parts, for what it takes to be
            # the same: levels that seem to follow from the gradient exist in the backward pass alone.
            first = gradient.flatten()[:1]
            pairs = torch.where(first == first, pairs, pairs)
        weight = dequantised(codes, scales, factors, pairs).to(gradient.dtype)
        return (gradient @ (weight.t() if ctx.transposed else weight), *(None for _ in range(5)))


def product(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """Returns what a layer in NF4 gives, with its bias, without an adapter."""
    parts = (getattr(layer, name) for name in (CODES, SCALES, FACTORS, _PAIRS))
    transposed = not isinstance(layer, nn.Linear)  # transformers' Conv1D, which a worker imports by stubs
    output: torch.Tensor = _Product.apply(input, transposed, *parts)
    return output if layer.bias is None else output + layer.bias.to(output.dtype)


def awaits_quantising(layer: nn.Module) -> bool:
    """Returns whether the layer is to have its weight in NF4 and still has it as it was drawn."""
    return hasattr(layer, "in_nf4") and hasattr(layer, "weight")


def quantise(layer: Any) -> None:
    """Puts the parts in NF4 in place of a layer's weight."""
    parts = quantised(layer.weight.detach())
    del layer.weight
    for name, part in parts.items():
        setattr(layer, name, nn.Parameter(part, requires_grad=False))
    layer.register_buffer(_PAIRS, _pairs(parts[FACTORS]), persistent=False)


def is_in_nf4(layer: nn.Module) -> bool:
    """Returns whether the layer's weight is in NF4 and nothing else."""
    codes = getattr(layer, CODES, None)
    return codes is not None and codes.dtype == torch.uint8 and not hasattr(layer, "weight")


def multiply(factors: torch.Tensor, factor: float, *, offset: int, length: int) -> None:
    """Multiplies a weight by `factor`, in place, by its factors and mean, `length` values of which these begin at
    `offset`.
    """
    mean = max(0, length - 1 - offset)
    factors[:mean].div_(factor)
    factors[mean:].mul_(factor)


def quantised_parts(path: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parts of the weight of the layer at `path`, by the names of parameters.

    Raises:
        ValueError: scales of its blocks do not differ, or are no numbers.
    """
    parts = quantised(weight)
    if not torch.isfinite(parts[FACTORS]).all():
        raise ValueError(
            f"{path}.weight cannot be in NF4, {BLOCK} times {scales_of_factor(weight.numel())} of its values have"
            " scales that do not differ, as zeros have: choose an adapter lora_..."
        )
    yield from ((f"{path}.{name}", part) for name, part in parts.items())
