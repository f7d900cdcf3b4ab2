"""Measures how busy a node is with other work while a window is timed: processors, hypervisor, clock."""

import dataclasses
import os
import re
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostSampled:
    """One rank's node during a window. Seconds are summed over the processors on which the rank may run."""

    node: str
    wall_s: float
    processors: int
    busy_s: float
    """Processor seconds used by all processes on the node."""
    process_s: float
    """Processor seconds used by this rank's process."""
    steal_s: float
    """Processor seconds that the hypervisor gave to other machines."""
    load_average: float
    """Load average over the last minute."""
    clock_mhz: float | None = None
    """Mean over processors; None if unreadable."""


class HostSampler:
    """Reads the node's counters of processor time at the start and at the end of a window."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._before: tuple[float, float, float, float] | None = None

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> HostSampled | None:
        """Returns the samples since `start`; None if the node has no such counters."""
        before, after = self._before, self._read()
        if before is None or after is None:
            return None
        wall_s, busy_s, steal_s, process_s = (max(0.0, end - start) for start, end in zip(before, after, strict=True))
        return HostSampled(
            node=socket.gethostname(),
            wall_s=wall_s,
            processors=len(os.sched_getaffinity(0)),
            busy_s=busy_s,
            process_s=process_s,
            steal_s=steal_s,
            load_average=os.getloadavg()[0],
            clock_mhz=self._clock_mhz(),
        )

    def _read(self) -> tuple[float, float, float, float] | None:
        """Returns the clock, busy, stolen and own process seconds so far; None without counters."""
        try:
            text = (self._proc / "stat").read_text()
        except OSError:
            return None
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        busy = stolen = 0
        for line in text.splitlines():
            name, *counts = line.split()
            if name in ours:
                user, nice, system, _idle, _waiting, interrupts, soft, steal = map(int, counts[:8])
                busy += user + nice + system + interrupts + soft
                stolen += steal
        ticks = os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy / ticks, stolen / ticks, time.process_time()

    def _clock_mhz(self) -> float | None:
        try:
            clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", (self._proc / "cpuinfo").read_text(), re.MULTILINE)
        except OSError:
            return None
        return statistics.fmean(map(float, clocks)) if clocks else None


def host_fields(windows: Sequence[Sequence[HostSampled | None]]) -> Any:
    """Returns the nodes' load from other work as fields of a measurement. `windows` holds each rank's sample per
    window.

    Over several nodes: the highest load, the highest steal time and the lowest clock. Empty if nothing was read.
    """
    by_window = [_by_node(window) for window in windows]
    if not by_window or not all(by_window):
        return {}
    last = [sample.load_average for node in by_window[-1] for sample in node]
    clocks = [[sample.clock_mhz for node in window for sample in node if sample.clock_mhz] for window in by_window]
    return {
        "load_average": max(last),
        "others_busy_pct": tuple(max(map(_others_pct, window)) for window in by_window),
        "steal_pct": tuple(max(map(_steal_pct, window)) for window in by_window),
        "cpu_clock_mhz": tuple(map(min, clocks)) if all(clocks) else (),
    }


def _by_node(window: Sequence[HostSampled | None]) -> list[list[HostSampled]]:
    nodes: dict[str, list[HostSampled]] = {}
    for sample in window:
        if sample is not None and sample.wall_s > 0:
            nodes.setdefault(sample.node, []).append(sample)
    return list(nodes.values())


def _others_pct(node: Sequence[HostSampled]) -> float:
    """Returns the percentage of the node's processors used by processes other than the trial's."""
    others_s = max(sample.busy_s for sample in node) - sum(sample.process_s for sample in node)
    return _percent(others_s, node)


def _steal_pct(node: Sequence[HostSampled]) -> float:
    return _percent(max(sample.steal_s for sample in node), node)


def _percent(seconds: float, node: Sequence[HostSampled]) -> float:
    first = node[0]
    return 100 * min(1.0, max(0.0, seconds / (first.wall_s * first.processors)))
