"""Weights in NF4 have torchao's numbers, and their products keep them quantised, compiled or not."""

# pyright: reportPrivateUsage=false

from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from trainers.models import nf4
from trainers.models.adapters import _QuantisedLinear, _QuantisedTransposed
from trainers.spec.nf4 import CODES, FACTORS, SCALES, held_bytes, scales_of_factor


def weight(rows: int, width: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).mul(0.05).to(dtype)


@pytest.mark.slow  # torchao takes seconds
@pytest.mark.parametrize("shape", [(128, 256), (64, 192), (1600, 4800)])
def test_numbers_are_torchaos_bit_for_bit_in_bf16(shape: tuple[int, int]) -> None:
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    for seed in range(3):
        full = weight(*shape, seed)
        expected: Any = to_nf4(full, 64, scales_of_factor(full.numel()))
        parts = nf4.quantised(full)
        assert torch.equal(parts[CODES].flatten(), expected.quantized_data)
        assert torch.equal(parts[SCALES].flatten(), expected.quantized_scalers)
        assert torch.equal(parts[FACTORS], torch.cat([expected.quantization_factor, expected.scaler_mean[None]]))
        assert torch.equal(nf4.dequantised(*parts.values()), expected.get_original_weight())


@pytest.mark.parametrize("shape", [(128, 256), (64, 192), (1600, 4800)])
def test_bytes_are_those_that_are_stated(shape: tuple[int, int]) -> None:
    parts = nf4.quantised(weight(*shape))
    stored = sum(part.numel() * part.element_size() for part in parts.values())
    assert stored == held_bytes(shape[0] * shape[1], 2)
    assert nf4.quantised(weight(128, 256).float())[FACTORS].dtype == torch.float32


@pytest.mark.parametrize("full", [torch.zeros(64, 64), torch.ones(64, 128)])
def test_weights_whose_scales_do_not_differ_are_refused(full: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"h\.0\.weight cannot be in NF4, 64 times \d+ of its values"):
        dict(nf4.quantised_parts("h.0", full))


@pytest.mark.parametrize("offset", [0, 2, 4])
def test_a_multiple_of_a_weight_is_one_of_its_factors_and_mean(offset: int) -> None:
    parts = nf4.quantised(weight(256, 256, dtype=torch.float32))
    before = nf4.dequantised(*parts.values())
    factors = parts[FACTORS]
    assert len(factors) == 5
    for first, last in ((0, offset), (offset, 5)):  # as two ranks hold them
        nf4.multiply(factors[first:last], 1.7, offset=first, length=5)
    assert torch.allclose(nf4.dequantised(*parts.values()), 1.7 * before, rtol=1e-5)


def layer(inputs: int, outputs: int, transposed: bool = False) -> Any:
    """Returns a layer in NF4 with an adapter, and with a bias."""
    linear: Any = Conv1D(outputs, inputs) if transposed else nn.Linear(inputs, outputs)
    linear.__class__ = _QuantisedTransposed if transposed else _QuantisedLinear
    linear.requires_grad_(False).in_nf4 = True
    linear.weight.data, linear.bias.data = weight(*linear.weight.shape), weight(1, outputs)[0]
    assert nf4.awaits_quantising(linear)
    assert not nf4.is_in_nf4(linear)
    nf4.quantise(linear)
    assert nf4.is_in_nf4(linear)
    assert not nf4.awaits_quantising(linear)
    linear.lora_A, linear.lora_B, linear.lora_scale = nn.Linear(inputs, 8, False), nn.Linear(8, outputs, False), 2.0
    return linear


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_that_of_the_values(transposed: bool) -> None:
    linear = layer(128, 192, transposed)
    rows = weight(5, 128).requires_grad_()
    output = nf4.product(linear, rows)
    values = nf4.dequantised(*(getattr(linear, name) for name in (CODES, SCALES, FACTORS)))
    assert torch.equal(output, rows @ (values if transposed else values.t()) + linear.bias)
    (gradient,) = torch.autograd.grad(output.sum(), rows)
    assert torch.equal(gradient, torch.ones_like(output) @ (values.t() if transposed else values))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["", "aot_eager_decomp_partition"])
def test_no_weight_is_kept_for_the_backward_pass(backend: str) -> None:
    block = nn.Sequential(layer(128, 512), nn.SiLU(), layer(512, 128))
    if backend:
        block.compile(backend=backend)
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = block(weight(16, 128).requires_grad_())
    output.float().square().mean().backward()
    weights = [tensor for tensor in saved if tensor.is_floating_point() and tensor.numel() == 128 * 512]
    assert any(tensor.dtype == torch.uint8 for tensor in saved)
    assert weights == []
