"""Finds lagging devices and nodes in a probe."""

import statistics
from collections.abc import Iterator, Mapping

from trainers.records.probe import Probe

LAGS = 0.10
"""Share below the median from which a device is reported; equal devices differ by 2 to 5 %."""


def laggards(probe: Probe) -> tuple[str, ...]:
    """Returns a clause for each device or node that is more than `LAGS` below the median in a figure."""
    return tuple(clause for _, clause in lagging(probe, LAGS))


def lagging(probe: Probe, share: float) -> tuple[tuple[int, str], ...]:
    """Returns (node index, clause) for each device or node that is more than `share` below the median in a figure."""
    return (*_devices(probe, share), *_nodes(probe, share))


def _devices(probe: Probe, share: float) -> Iterator[tuple[int, str]]:
    precisions = dict.fromkeys(product.precision for device in probe.devices for product in device.products)
    for precision in precisions:
        rates = {device.rank: device.best_tflops(precision) or 0.0 for device in probe.devices}
        for rank, rate in _below(rates, "TFLOP/s", share):
            yield _node(probe, rank), f"{_device(probe, rank)}: {precision} products at {rate}"
    for rank, rate in _below({device.rank: device.copy_gb_per_s for device in probe.devices}, "GB/s", share):
        yield _node(probe, rank), f"{_device(probe, rank)}: copies at {rate}"


def _nodes(probe: Probe, share: float) -> Iterator[tuple[int, str]]:
    inside = {
        collective.nodes[0]: collective.bus_gb_per_s for collective in probe.of_size("node", "all_reduce", largest=True)
    }
    for node, rate in _below(inside, "GB/s", share):
        yield node, f"node {node} ({probe.nodes[node]}): all-reduce between its devices at {rate}"
    # A node counts with its better neighbour, because a slow node is slow with both.
    pairs: dict[int, float] = {}
    for collective in probe.of_size("pair", "all_reduce", largest=True):
        for node in collective.nodes:
            pairs[node] = max(pairs.get(node, 0.0), collective.bus_gb_per_s)
    for node, rate in _below(pairs, "GB/s", share):
        yield node, f"node {node} ({probe.nodes[node]}): all-reduce with either neighbour at {rate}"


def _below(rates: Mapping[int, float], unit: str, share: float) -> Iterator[tuple[int, str]]:
    """Yields the keys of lagging rates, with text on the rate and the median."""
    if len(rates) < 2:
        return
    median = statistics.median(rates.values())
    for key, rate in rates.items():
        if rate < (1 - share) * median:
            yield key, f"{rate:.3g} {unit}, {100 * (1 - rate / median):.0f} % below the median of {median:.3g}"


def _node(probe: Probe, rank: int) -> int:
    return next(device.node for device in probe.devices if device.rank == rank)


def _device(probe: Probe, rank: int) -> str:
    device = next(candidate for candidate in probe.devices if candidate.rank == rank)
    return f"device {rank} on node {device.node} ({probe.nodes[device.node]})"
