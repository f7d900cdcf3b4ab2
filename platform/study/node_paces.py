"""Relative speeds ("paces") of nodes, from the matmul peak that each node measures in its first trial.

They make figures of different nodes comparable. Recorded figures are never changed. A run of a reference layout on each
node would measure less precisely, because such runs vary as much as healthy nodes differ
(`python -m benchmarks.unlike_nodes`).
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from trainers.records.journal import Peak
from trainers.records.measurement import Measurement

UNLIKE = 0.05
"""Nodes are unlike if the fastest peak exceeds the slowest by more than this share; smaller differences are noise."""

Paces = Mapping[str, float]
"""Speed of a node over the median node's, by the node's address."""
UNKNOWN: Paces = MappingProxyType({})


def paces_of(peaks: Sequence[Peak]) -> Paces:
    """Returns the paces of nodes by each node's slowest device, from the last peaks; empty if the nodes are alike."""
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
    return pace_at(measurement.addresses, paces)


def pace_at(addresses: Collection[str], paces: Paces) -> float:
    """Returns the pace of the slowest of these nodes; 1 if it is unknown."""
    return min((paces.get(address, 1.0) for address in addresses), default=1.0) if paces else 1.0
