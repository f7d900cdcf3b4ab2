"""What a node has, asked on the node itself, without torch and without a CUDA context."""

import importlib.metadata
import os
from pathlib import Path
from typing import Any, cast

GIB = 2**30


def facts(gpu: bool) -> dict[str, Any]:
    """Name, memory (GiB), versions and, on a GPU, compute capability of the node's devices; raises what NVML raises."""
    if not gpu:
        memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
        return {"device": _processor(), "memory_gib": memory_gib, "software": software()}
    import pynvml

    pynvml.nvmlInit()
    found: set[tuple[str, float, tuple[int, int]]] = set()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory_gib = round(cast(int, pynvml.nvmlDeviceGetMemoryInfo(handle).total) / GIB, 2)
        found.add((name if isinstance(name, str) else name.decode(), memory_gib, (major, minor)))
    if len(found) != 1:
        return {"mixed": sorted(name for name, *_ in found)}
    name, memory_gib, capability = found.pop()
    driver = pynvml.nvmlSystemGetDriverVersion()
    versions = software() | {"driver": driver if isinstance(driver, str) else driver.decode()}
    return {"device": name, "memory_gib": memory_gib, "capability": capability, "software": versions}


def software() -> dict[str, str]:
    """Versions that a device's speed depends on, of the packages that are installed here: torch and NCCL."""
    found = {"torch": importlib.metadata.version("torch")}
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return found | {"nccl": importlib.metadata.version(package)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
