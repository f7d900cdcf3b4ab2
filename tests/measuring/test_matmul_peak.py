# pyright: reportPrivateUsage=false
"""The measured matmul peak, from made-up seconds of the products."""

import itertools
from typing import Any

import pytest
import torch

from trainers.measuring import matmul_peak


def test_it_is_the_best_shape_s_median_over_random_normal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        shape: itertools.cycle((median_s, 3 * median_s, median_s))
        for shape, median_s in (((1024, 1024), 2.0), ((2048, 512), 1.0))
    }
    factors: list[torch.Tensor] = []

    def product_s(device: torch.device, product: Any) -> float:
        a, b = product.args
        factors.extend((a, b))
        return next(seconds[a.shape[0], a.shape[1]])

    monkeypatch.setattr(matmul_peak, "_product_s", product_s)
    tflops = matmul_peak.measure_tflops(torch.device("cpu"), "fp32", seconds=0.0)
    assert tflops == pytest.approx(2 * 2048 * 1024 * 512 / 1.0 / 1e12)
    assert len(factors) == 2 * 2 * 5, "five repetitions of each shape at least"
    for factor in factors:
        assert factor.mean().item() == pytest.approx(0, abs=0.02) and factor.std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("precision", ["fp8_tensorwise", "fp8_rowwise"])
def test_a_cpu_multiplies_in_fp32_what_it_emulates(precision: str) -> None:
    product = matmul_peak._in_float8(torch.ones(4, 8), torch.ones(8, 2), precision)
    product_of_ones = product()
    assert (
        isinstance(product_of_ones, torch.Tensor)
        and product_of_ones.dtype == torch.float32
        and product_of_ones.tolist() == [[8.0, 8.0]] * 4
    )
