"""Keeps a process to the processors near its GPU, where other trials run on other GPUs of the same host."""

import contextlib
import os
from pathlib import Path

_DEVICES = Path("/sys/bus/pci/devices")


def keep_near(address: str, devices: Path = _DEVICES) -> frozenset[int]:
    """Restricts this thread, and those that it starts, to the processors of the NUMA node of the device at this PCI
    address ("0000:19:00.0"), which then allocate memory there; returns them. Where the host does not say which these
    are, or none of them is this process's, nothing changes: empty.
    """
    with contextlib.suppress(OSError, ValueError):
        near = frozenset(_numbers((devices / address / "local_cpulist").read_text()) & os.sched_getaffinity(0))
        if near:
            os.sched_setaffinity(0, near)
        return near
    return frozenset()


def _numbers(text: str) -> set[int]:
    """Returns the numbers of a list as in "0-3,8"."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
