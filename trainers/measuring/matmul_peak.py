"""The matmul peak: what this device reaches on plain matrix products, the denominator of "% of measured peak"."""

import time

import torch

_SHAPES = {
    "cuda": ((8192, 8192, 8192), (16384, 8192, 8192), (8192, 16384, 4096)),
    "cpu": ((1024, 1024, 1024), (2048, 1024, 512)),
}
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure_tflops(device: torch.device, precision: str, seconds: float) -> float:
    """TFLOP/s of C = A B on random normal data (zeros run faster than real data): best shape, median repetition."""
    shapes = _SHAPES[device.type]
    return max(product_tflops(device, shape, precision, seconds / len(shapes)) for shape in shapes)


def product_tflops(device: torch.device, shape: tuple[int, int, int], precision: str, seconds: float) -> float:
    """TFLOP/s of one shape (rows, columns, depth): the median repetition of `seconds`, five at least."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    m, n, k = shape
    dtype = _TYPES[precision]
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    for _ in range(3):
        torch.mm(a, b, out=out)
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 5:
        times.append(_one(device, a, b, out))
    return 2 * m * n * k / sorted(times)[len(times) // 2] / 1e12


def _one(device: torch.device, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.mm(a, b, out=out)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    start_s = time.perf_counter()
    torch.mm(a, b, out=out)
    return time.perf_counter() - start_s
