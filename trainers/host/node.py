"""Reports a node's devices and software, from the node itself, and whether it can be reached; needs neither torch nor a
CUDA context.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from trainers.host.abandoned import end_abandoned
from trainers.spec import engines, optional_kernels

GIB = 2**30
_PACKAGES = ("torch", "ray", *engines.packages(), "transformers")
"""The packages that training uses."""
GRACE_S = 10.0
"""Seconds that ending processes may take to release a GPU."""
UNNAMED_SHARE = 0.05
"""Share of a GPU's memory; if processes that NVML does not name use more, the GPU counts as busy. A driver uses 0.5 GiB
of an H200.
"""


def facts(gpu: bool) -> dict[str, Any]:
    """Returns name, memory (GiB) and, for GPUs, compute capability of the node's devices, `host_gib` (host memory that
    this process's group may take), and the facts that a preflight checks: `versions`, `uncompiled`,
    `replaced_libraries`, `temp` with `temp_free_mib`, `held` (GPUs in use by others) and `unix_s` (its clock). Ends
    abandoned processes of this user's commands. Raises NVML's errors.
    """
    end_abandoned()  # first, because they hold GPUs
    temp = tempfile.gettempdir()
    facts_now = {"versions": versions(), "uncompiled": uncompiled(), "temp": temp, "temp_free_mib": free_mib(temp)}
    return (
        facts_now
        | {"replaced_libraries": replaced_libraries(), "held": _held() if gpu else []}
        | {"host_gib": float(round(memory_bytes() / GIB))}
        | _devices(gpu)
        | {"unix_s": time.time()}
    )


def _devices(gpu: bool) -> dict[str, Any]:
    if not gpu:
        memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
        return {"device": _processor(), "memory_gib": memory_gib, "software": software()}
    import pynvml

    pynvml.nvmlInit()
    kinds: set[tuple[str, float, tuple[int, int]]] = set()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory_gib = round(cast(int, pynvml.nvmlDeviceGetMemoryInfo(handle).total) / GIB, 2)
        kinds.add((name if isinstance(name, str) else name.decode(), memory_gib, (major, minor)))
    if len(kinds) != 1:
        return {"mixed": sorted(name for name, *_ in kinds)}
    name, memory_gib, capability = kinds.pop()
    driver = pynvml.nvmlSystemGetDriverVersion()
    software_versions = software() | {"driver": driver if isinstance(driver, str) else driver.decode()}
    return {"device": name, "memory_gib": memory_gib, "capability": capability, "software": software_versions}


def uncompiled() -> dict[str, str]:
    """Returns the packages without bytecode, with their folders, that Python cannot write bytecode for, so that every
    process compiles them again. On H200 hosts whose image sets PYTHONDONTWRITEBYTECODE this was half of a trial's
    start-up time (docs/measurements.md).
    """
    uncompiled_in: dict[str, str] = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        cached = Path(importlib.util.cache_from_source(spec.origin))
        folder = next(parent for parent in cached.parents if parent.exists())
        if not cached.exists() and (sys.dont_write_bytecode or not os.access(folder, os.W_OK)):
            uncompiled_in[name] = str(Path(spec.origin).parents[1])
    return uncompiled_in


def replaced_libraries() -> list[str]:
    """Returns the files on LD_LIBRARY_PATH that the loader uses instead of torch's own CUDA libraries and cuDNN."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    packages = Path(spec.origin).parents[1]
    bundled = {path.name: path.resolve() for path in (packages / "nvidia").glob("*/lib/lib*.so.*")}
    paths: list[str] = []
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        for name in sorted(bundled):
            path = Path(folder) / name
            if path.exists() and not path.resolve().is_relative_to(packages.resolve()):
                paths.append(str(path))
    return paths


def versions() -> dict[str, str]:
    """Returns the versions that must be equal on all nodes: Python, the packages that training uses, and the code of
    `trainers`, because a node may have an older checkout on its path than the driver's.
    """
    installed = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in (*_PACKAGES, *optional_kernels.PACKAGES):
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = "none"
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(path.read_bytes())
    return installed | {"this project's code": code.hexdigest()[:12]}


def free_mib(folder: str | os.PathLike[str]) -> float:
    """Returns the MiB free for this user on the disk of `folder`, or of its nearest existing parent."""
    existing = next(parent for parent in (Path(folder), *Path(folder).parents) if parent.exists())
    return shutil.disk_usage(existing).free / 2**20


def _held() -> list[dict[str, Any]]:
    """Returns the GPUs in use: index, pid, the program's name and GiB, an entry per process. Waits up to `GRACE_S` for
    a finished search to release them. A container may see neither pids nor names; used memory then decides.
    """
    until_s = time.monotonic() + GRACE_S
    while (holders := list(_holders())) and time.monotonic() < until_s:
        time.sleep(0.5)
    return holders


def is_of_this_node(index: int, uuid: str) -> bool:
    """Returns whether this node gave the GPU to Ray; NVML lists all GPUs of the machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    return any(
        visible_device == str(index) or (len(visible_device) > 4 and uuid.startswith(visible_device))
        for visible_device in visible.split(",")
    )


def _holders() -> Iterator[dict[str, Any]]:
    import pynvml

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if not is_of_this_node(index, uuid if isinstance(uuid, str) else uuid.decode()):
            continue
        try:
            processes: list[Any] = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:  # not supported by this kind of device
            processes = []
        for process in processes:
            try:
                name = Path(f"/proc/{process.pid}/comm").read_text().strip()
            except OSError:
                name = "unseen from here"
            used = getattr(process, "usedGpuMemory", None)
            yield {"gpu": index, "pid": process.pid, "name": name, "gib": None if used is None else used / GIB}
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        if not processes and cast(int, memory.used) > UNNAMED_SHARE * cast(int, memory.total):
            yield {"gpu": index, "pid": None, "name": "", "gib": cast(int, memory.used) / GIB}


def software() -> dict[str, str]:
    """Returns the installed versions of torch and NCCL, which affect a device's speed."""
    installed = {"torch": importlib.metadata.version("torch")}
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return installed | {"nccl": importlib.metadata.version(package)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def autoscaling(gcs_address: str) -> dict[str, Any] | None:
    """Returns the configuration of the autoscaler of the cluster at `gcs_address`; call it on the head node. Reads the
    file of `ray start --autoscaling-config`, which `ray up` writes. None if no autoscaler of that cluster runs here
    with such a file.
    """
    import psutil
    import yaml

    for process in psutil.process_iter(["cmdline"]):
        arguments = [argument.partition("=") for argument in process.info["cmdline"] or () if argument.startswith("--")]
        options = {name: value for name, _, value in arguments}
        if options.get("--gcs-address") == gcs_address and options.get("--autoscaling-config"):
            with contextlib.suppress(OSError):
                return yaml.safe_load(Path(options["--autoscaling-config"]).expanduser().read_text())
    return None


def error_of(host: str, port: int, timeout_s: float = 5.0) -> OSError | None:
    """Returns the error if nothing accepts a connection there in time, else None."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        return error
    except (OverflowError, ValueError) as error:  # no such port number or host name
        return OSError(str(error))
    return None


def oom_kills(system: Path = Path("/")) -> int:
    """Returns the number of processes of this control group that the kernel has killed for lack of memory; 0 if
    unknown. `system` is the root of the file system.
    """
    for folder, is_first_version in _memory_groups(system):
        with contextlib.suppress(OSError):
            text = (folder / ("memory.oom_control" if is_first_version else "memory.events")).read_text()
            if match := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
                return int(match[1])
    return 0


def available_memory_bytes(system: Path = Path("/")) -> int | None:
    """Returns the bytes of host memory still available to this control group: the kernel's estimate, or less if the
    group's limit (such as a container's) leaves less. None if neither is known. `system` is the root of the file
    system.
    """
    with contextlib.suppress(OSError):
        if match := re.search(r"^MemAvailable: +(\d+) kB$", (system / "proc/meminfo").read_text(), re.MULTILINE):
            of_host = int(match[1]) * 1024
            return min([of_host, *_group_memory_bytes(system)])
    return min(_group_memory_bytes(system), default=None)


def memory_bytes(system: Path = Path("/")) -> int:
    """Returns the bytes of host memory that this control group may take: the host's, or its limit if that is less.
    `system` is the root of the file system.
    """
    import psutil

    limits = [psutil.virtual_memory().total]
    for folder, is_first_version in _memory_groups(system):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")).read_text()))
    return min(limits)


def _group_memory_bytes(system: Path) -> Iterator[int]:
    """Yields the bytes left by the limit of each memory group."""
    for folder, is_first_version in _memory_groups(system):
        limit, used, prefix = ("memory.max", "memory.current", "")
        if is_first_version:
            limit, used, prefix = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        with contextlib.suppress(OSError, ValueError):  # a ValueError for "max", which means no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            # The kernel frees pages of files that were not read lately on demand.
            cached = re.search(rf"^{prefix}inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
            yield max(0, left + (int(cached[1]) if cached else 0))


def _memory_groups(system: Path) -> Iterator[tuple[Path, bool]]:
    """Yields the folders that may be this process's memory group or one around it, whose limit holds for it too, and
    whether they are of cgroup version 1; the innermost first.
    """
    try:
        groups = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = system / "sys/fs/cgroup"
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = mount / "memory" if controllers else mount
        # A container may see its own group as the root, although the path is the host's.
        inside = PurePosixPath(path.lstrip("/"))
        for group_path in dict.fromkeys((inside, *inside.parents)):
            yield root / group_path, bool(controllers)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
