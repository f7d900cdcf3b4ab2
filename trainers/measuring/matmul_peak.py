"""Measures the matmul peak: TFLOP/s of plain matrix products, the denominator of "% of measured peak"."""

# torch's FP8 product has a private name only.
# pyright: reportPrivateUsage=false

import functools
import time
from collections.abc import Callable

import torch

_SHAPES = {
    "cuda": ((8192, 8192, 8192), (16384, 8192, 8192), (8192, 16384, 4096)),
    "cpu": ((1024, 1024, 1024), (2048, 1024, 512)),
}
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_Product = Callable[[], object]


def measure_tflops(device: torch.device, precision: str, seconds: float) -> float:
    """Returns the TFLOP/s of C = A B for the best shape, on random normal data, because zeros would run faster."""
    shapes = _SHAPES[device.type]
    return max(product_tflops(device, shape, precision, seconds / len(shapes)) for shape in shapes)


def product_tflops(device: torch.device, shape: tuple[int, int, int], precision: str, seconds: float) -> float:
    """Returns the TFLOP/s of one shape (rows, columns, depth): the median of repetitions during `seconds`, at least
    five.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    m, n, k = shape
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    product = _in_float8(a, b, precision) if precision.startswith("fp8") else _plain(a, b, _TYPES[precision])
    for _ in range(3):
        product()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 5:
        times.append(_product_s(device, product))
    return 2 * m * n * k / sorted(times)[len(times) // 2] / 1e12


def _plain(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> _Product:
    out = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=dtype)
    return functools.partial(torch.mm, a.to(dtype), b.to(dtype), out=out)


def _in_float8(a: torch.Tensor, b: torch.Tensor, precision: str) -> _Product:
    """Returns the product of matrices stored in FP8, as in a linear layer's forward pass; on a CPU the product is in
    fp32.
    """
    if a.device.type == "cpu":
        return _plain(a, b, torch.float32)
    rows = precision == "fp8_rowwise"
    scale_a = torch.ones((len(a), 1) if rows else (), device=a.device)
    scale_b = torch.ones((1, b.shape[1]) if rows else (), device=a.device)
    # The library requires the second matrix in column-major order.
    narrow = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
    product: Callable[..., torch.Tensor] = getattr(torch, "_scaled_mm")  # noqa: B009  # torch's only FP8 product
    return functools.partial(
        product, *narrow, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _product_s(device: torch.device, product: _Product) -> float:
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        product()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    start_s = time.perf_counter()
    product()
    return time.perf_counter() - start_s
