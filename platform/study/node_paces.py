"""Paces of nodes beside each other, from the matmul peak that each measures in its first trial: figures of different
nodes are compared through it. Every figure in a record stays as it was measured.

One run of a reference layout on each node would say less: from run to run figures differ as much as healthy nodes do
(`python -m benchmarks.unlike_nodes`).
"""

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from trainers.records.journal import Peak
from trainers.records.measurement import Measurement

UNLIKE = 0.05
"""Share by which the fastest node's peak is above the slowest one's where nodes are unlike; below, it is noise."""

Paces = Mapping[str, float]
"""Speed by a node's address, over that of the middle one."""
UNKNOWN: Paces = MappingProxyType({})


def paces_of(peaks: Sequence[Peak]) -> Paces:
    """Returns the paces of nodes by the slowest device of each, as measured last; empty where they are alike."""
    speeds: dict[str, float] = {}
    for peak in peaks:
        if peak.precision != peaks[0].precision:
            continue
        speeds |= slowest_by_node(peak)
    if not speeds or not max(speeds.values()) > (1 + UNLIKE) * min(speeds.values()) > 0:
        return UNKNOWN
    middle = statistics.median(speeds.values())
    return {node: speed / middle for node, speed in speeds.items()}


def slowest_by_node(peak: Peak) -> dict[str, float]:
    """Returns the peak of the slowest device of each node."""
    by_rank = peak.by_device if len(peak.by_device) == len(peak.nodes) else (peak.tflops,) * len(peak.nodes)
    speeds: dict[str, float] = {}
    for node, tflops in zip(peak.nodes, by_rank, strict=True):
        speeds[node] = min(tflops, speeds.get(node, tflops))
    return speeds


def pace_of(measurement: Measurement, paces: Paces) -> float:
    """Returns the pace of the slowest of the nodes on which it ran; 1 where it is not known."""
    return min((paces.get(address, 1.0) for address in measurement.addresses), default=1.0) if paces else 1.0
