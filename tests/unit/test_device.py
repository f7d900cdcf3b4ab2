"""Which exceptions of a device are out of memory: by what it has left, never by the words alone."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainers.failures import GIB
from trainers.measuring.device import CpuMeter, CudaMeter

ROOT = Path(__file__).parents[2]
LIBRARY = (
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: out of memory",
    "NCCL error: unhandled cuda error; Last error: Cuda failure 2 'out of memory'",
)


@pytest.fixture
def free_gib(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a made-up device of 80 GiB has left."""
    free = [40.0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free[0] * GIB), 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 70 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 75 * GIB)
    return free


@pytest.mark.parametrize("text", LIBRARY)
def test_a_library_that_got_no_memory_is_out_of_memory_on_a_full_device_only(text: str, free_gib: list[float]) -> None:
    meter = CudaMeter()
    assert meter.out_of_memory(RuntimeError(text)) is None
    free_gib[0] = 0.3
    assert meter.out_of_memory(RuntimeError(text)) == {"asked_gib": None, "allocated_gib": 70.0, "reserved_gib": 75.0}
    assert meter.out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered")) is None


def test_a_refused_allocation_of_cpp_is_out_of_memory_under_a_cap_only() -> None:
    meter = CpuMeter(4.0)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert meter.out_of_memory(RuntimeError("std::bad_alloc")) is None
    meter.start(1024.0)
    try:
        assert meter.out_of_memory(RuntimeError("std::bad_alloc")) is not None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_refused_tensor_is_out_of_memory_under_a_cap_though_it_would_fit_by_now() -> None:
    """What the step held is freed while its error travels: 4 MiB of an activation fit again then."""
    meter = CpuMeter(4.0)
    text = (
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes. Error code 12"
    )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert meter.out_of_memory(RuntimeError(text)) is None, "without a cap nothing of 4 MiB is refused"
    meter.start(1024.0)
    try:
        sizes = meter.out_of_memory(RuntimeError(text))
        assert sizes is not None and sizes["asked_gib"] == 4 / 1024
        assert meter.out_of_memory(RuntimeError("shape mismatch")) is None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


CAPPED = """
import os, random, sys
import torch
from trainers.measuring.device import CpuMeter

MIB = 2**20


def held(seed, cap_mib):
    # Peak MiB of a step that holds 100 MiB at most, after steps of other sizes; "oom" where the cap refuses it.
    draw = random.Random(seed)
    meter = CpuMeter(4.0)
    meter.start(cap_mib / 1024)
    for _ in range(12):  # on a heap they would leave holes, other ones for each seed
        kept = [torch.ones(draw.randrange(1, 2 * MIB), dtype=torch.uint8) for _ in range(20)]
        del kept[:: draw.randrange(2, 5)]
    del kept
    meter.reset_peak()
    try:
        for _ in range(3):
            step = [torch.ones(size * MIB, dtype=torch.uint8) for size in draw.sample([10, 20, 30, 40], 4)]
            del step
    except RuntimeError as error:
        return "oom" if meter.out_of_memory(error) else repr(error)
    return f"{meter.peak_allocated_gib() * 1024:.1f}"


for seed in range(3):
    for cap in (400, 95):
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, held(seed, cap).encode())
            os._exit(0)
        os.close(write)
        print(cap, os.read(read, 1000).decode())
        os.wait()
"""


def test_the_cap_of_a_cpu_worker_refuses_the_same_whatever_the_heap_held_before() -> None:
    done = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = [line.split() for line in done.stdout.splitlines()]
    assert len(told) == 6
    assert {found for cap, found in told if cap == "95"} == {"oom"}
    peaks = [float(found) for cap, found in told if cap != "95"]
    # Beside the 100 MiB: pages of torch's files that the first steps touch, 4 to 17 MiB by the page cache.
    assert min(peaks) >= 100.0 and max(peaks) < min(130.0, min(peaks) + 1.0), peaks
