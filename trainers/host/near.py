"""Restricts a process to the processors near its GPU, because other trials use other GPUs of the same host."""

import contextlib
import os
from pathlib import Path

_DEVICES = Path("/sys/bus/pci/devices")


def keep_near(address: str, devices: Path = _DEVICES) -> frozenset[int]:
    """Restricts this thread, and threads that it starts, to the processors of the NUMA node of the device at this PCI
    address ("0000:19:00.0"), so that memory is allocated there; returns the processors. Returns an empty set and
    changes nothing if the host does not list them, or none of them is available to this process.
    """
    with contextlib.suppress(OSError, ValueError):
        near = frozenset(_numbers((devices / address / "local_cpulist").read_text()) & os.sched_getaffinity(0))
        if near:
            os.sched_setaffinity(0, near)
        return near
    return frozenset()


def _numbers(text: str) -> set[int]:
    """Returns the numbers in a list such as "0-3,8"."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
