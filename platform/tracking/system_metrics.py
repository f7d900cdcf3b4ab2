"""Samples the load of the search's own machine into a file of the study, which is mirrored to MLflow's system metrics.

The file keeps the samples during an outage of MLflow. On a cluster they describe the head node; workers' devices are
recorded per timed window in each measurement.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import psutil

from platform.common.errors import InputError
from trainers.records.plain_files import open_plain
from trainers.spec.codec import json_object

SAMPLES = "system.jsonl"
_EVERY_S = 5.0
_MB = 1e6

Sample = tuple[int, int, Mapping[str, float]]
"""Number from 0, Unix milliseconds, and figures by MLflow's metric names."""


class Samples:
    """Reads new samples of a study, skipping those up to `after_ms`."""

    def __init__(self, folder: Path, *, after_ms: int) -> None:
        self._path = folder / SAMPLES
        self._after_ms = after_ms
        self._offset = 0
        self._number = 0

    def read(self) -> list[Sample]:
        """Returns the samples since the last call."""
        samples: list[Sample] = []
        try:
            descriptor = open_plain(self._path)
        except InputError:  # the file does not exist yet, or is not a plain file
            return samples
        with os.fdopen(descriptor, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._number += 1
                with contextlib.suppress(ValueError, KeyError):  # a killed process may have left an incomplete line
                    sample = json_object(line)
                    at_ms = sample.pop("at_ms")
                    if type(at_ms) is int and at_ms > self._after_ms:
                        samples.append((self._number - 1, at_ms, sample))
        return samples


@contextlib.contextmanager
def sampled(folder: Path, *, every_s: float = _EVERY_S) -> Generator[None]:
    """Appends a sample to the study's file every `every_s` seconds, from another thread."""
    is_over = threading.Event()
    thread = threading.Thread(
        target=_work, args=(folder / SAMPLES, is_over, every_s), name="system-metrics", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=2)


def _work(path: Path, is_over: threading.Event, every_s: float) -> None:
    gpus = _gpus()
    psutil.cpu_percent()  # the first call only starts the interval that the next call measures
    # On a full disk sampling stops silently; the journal reports the full disk.
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        while not is_over.wait(every_s):
            sample = {"at_ms": round(time.time() * 1000), **_host(), **{k: v for gpu in gpus for k, v in gpu().items()}}
            file.write(json.dumps(sample) + "\n")
            file.flush()


def _host() -> dict[str, float]:
    memory, network = psutil.virtual_memory(), psutil.net_io_counters()
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": round(memory.used / _MB),
        "system/system_memory_usage_percentage": memory.percent,
        "system/network_receive_megabytes": round(network.bytes_recv / _MB, 3),
        "system/network_transmit_megabytes": round(network.bytes_sent / _MB, 3),
    }


def _gpus() -> Sequence[Callable[[], dict[str, float]]]:
    """Returns a reader for each GPU of this machine; empty without a driver. NVML creates no CUDA context."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return ()

    def read(index: int, handle: Any) -> dict[str, float]:
        name = f"system/gpu_{index}"
        values: dict[str, float] = {}
        # Figures that a driver or MIG slice does not report are left out.
        with contextlib.suppress(pynvml.NVMLError):
            values[f"{name}_utilization_percentage"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with contextlib.suppress(pynvml.NVMLError):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            used, total = cast(int, memory.used), cast(int, memory.total)
            values[f"{name}_memory_usage_megabytes"] = round(used / _MB)
            values[f"{name}_memory_usage_percentage"] = round(100 * used / total, 2)
        with contextlib.suppress(pynvml.NVMLError):
            values[f"{name}_power_usage_watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        return values

    return [lambda index=index, handle=handle: read(index, handle) for index, handle in enumerate(handles)]
