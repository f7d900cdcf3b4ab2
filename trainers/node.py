"""What a node has, asked on the node itself, without torch and without a CUDA context."""

import contextlib
import importlib.metadata
import os
import re
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


def autoscaling(gcs_address: str) -> dict[str, Any] | None:
    """What the cluster at `gcs_address` may start, as its autoscaler has it; asked on the head node.

    That is the file of `ray start --autoscaling-config`, which `ray up` writes. None where no autoscaler of that
    cluster runs here with such a file.
    """
    import psutil
    import yaml

    for process in psutil.process_iter(["cmdline"]):
        told = [each.partition("=") for each in process.info["cmdline"] or () if each.startswith("--")]
        options = {name: value for name, _, value in told}
        if options.get("--gcs-address") == gcs_address and options.get("--autoscaling-config"):
            with contextlib.suppress(OSError):
                return yaml.safe_load(Path(options["--autoscaling-config"]).expanduser().read_text())
    return None


def oom_kills(system: Path = Path("/")) -> int:
    """Processes of this one's control group that the kernel killed so far for want of memory; 0 where it cannot tell.

    `system` is the root of the file system.
    """
    try:
        groups = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    mount = system / "sys/fs/cgroup"
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (mount / "memory", "memory.oom_control") if controllers else (mount, "memory.events")
        # A container may see its own group as the root, under the path that the host knows it by.
        for folder in (root / path.lstrip("/"), root):
            with contextlib.suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (folder / name).read_text(), re.MULTILINE)
                if found:
                    return int(found[1])
    return 0


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
