"""Replaces a catalogue cluster's figures by measurements of `platform.probe`."""

import dataclasses
import math
import statistics

from platform.cost_model import constants
from platform.cost_model.collectives import INTER_HOP_S, INTRA_HOP_S
from platform.cost_model.hardware import ClusterSpec, from_cluster
from trainers.records.probe import OPERATIONS, Collective, Operation, Probe, Scope
from trainers.spec.cluster import Cluster

COPY_SHARE = constants.number("probed", "COPY_SHARE")
TRAINING_SHARE = constants.number("probed", "TRAINING_SHARE")
FASTER = 2.0
"""Ratio of bandwidths from which parts of a node count as separate nodes."""
Link = tuple[float, float]
"""(bus bandwidth in GB/s, latency in seconds)."""
SHORTEST_S = 1e-6
"""Least latency, seconds; lower results are errors of the formula."""


def cluster_with_probe(cluster: Cluster, probe: Probe | None) -> ClusterSpec:
    """Returns a study's cluster with the figures of `probe` or, without one, of the catalogue.

    Raises:
        InputError: the device is not in the catalogue.
    """
    spec = from_cluster(cluster)
    return spec if probe is None else with_probe(spec, probe)


def with_probe(spec: ClusterSpec, probe: Probe) -> ClusterSpec:
    """Returns `spec` with the probe's figures: the median device's speed, the slowest link, the least context, and the
    nodes that its links show.
    """
    device = spec.device
    scales: dict[str, float] = {}
    for precision in {product.precision for probed in probe.devices for product in probed.products}:
        rates = [rate for probed in probe.devices if (rate := probed.best_tflops(precision)) is not None]
        scales[precision] = statistics.median(rates) / device.expected_tflops(precision, TRAINING_SHARE)
    copied = statistics.median(probed.copy_gb_per_s for probed in probe.devices)
    contexts = [probed.context_gib for probed in probe.devices if probed.context_gib is not None]
    spec = dataclasses.replace(
        spec,
        device=dataclasses.replace(
            device,
            scales=scales,
            bandwidth_gb_per_s=copied / COPY_SHARE,
            context_gib=min(contexts, default=device.context_gib),
        ),
    )
    inside, between = _link(probe, "node"), _link(probe, "cluster")
    if len(probe.devices) == spec.num_devices:
        per_node, inside, between = _domains(probe, inside, between)
        num_nodes = spec.num_devices // per_node
        spec = dataclasses.replace(spec, num_nodes=num_nodes, devices_per_node=per_node)
    if inside is not None:
        spec = dataclasses.replace(spec, intra_gb_per_s=inside[0], intra_latency_s=inside[1])
    if between is not None:
        spec = dataclasses.replace(
            spec,
            inter_gb_per_s=between[0],
            group_gb_per_s=math.inf,
            inter_latency_s=between[1],
            link_sigma=0.0,
            network_source="measured",
        )
    return spec


def _domains(probe: Probe, inside: Link | None, between: Link | None) -> tuple[int, Link | None, Link | None]:
    """Returns (devices of a node, the link inside it, the link between nodes) as measured: nodes are Ray's nodes or,
    with only one, parts whose links are faster than those of the whole node.
    """
    sizes = {sum(device.node == node for device in probe.devices) for node in range(len(probe.nodes))}
    per_node = sizes.pop() if len(sizes) == 1 else 1
    if len(probe.nodes) > 1 or inside is None:
        return per_node, inside, between
    for ranks in sorted({row.ranks for row in probe.collectives if row.scope == "part"}, reverse=True):
        part = _link(probe, "part", ranks)
        if part is not None and part[0] >= FASTER * inside[0]:
            return ranks, part, inside
    return per_node, inside, between


def _link(probe: Probe, scope: Scope, ranks: int | None = None) -> Link | None:
    """Returns (bus GB/s, seconds of latency) of the slowest group, among groups of `ranks` if given; None with fewer
    than two measured sizes.

    This inverts the alpha-beta model of `collectives`. The bandwidth is that of the bytes between the smallest and the
    largest size, median over operations. The latency is the time of the shortest all-reduce without its bytes and hops.
    A message counts with at most the time of any larger one, so that other work on the hosts, which slows some
    messages, does not make the link look faster.
    """
    rates: list[float] = []
    for operation in OPERATIONS:
        ends = [probe.of_size(scope, operation, ranks, largest=largest) for largest in (False, True)]
        if all(ends) and ends[0][0].num_bytes < ends[1][0].num_bytes:
            small, large = (max(groups, key=lambda group: group.seconds) for groups in ends)
            small_s = _shortest(probe, scope, ranks, operation).seconds
            grown = dataclasses.replace(
                large, num_bytes=large.num_bytes - small.num_bytes, seconds=large.seconds - small_s
            )
            rates.append(grown.bus_gb_per_s if grown.seconds > 0 else large.bus_gb_per_s)
    if not rates:
        return None
    bandwidth = statistics.median(rates)
    slowest = _shortest(probe, scope, ranks, "all_reduce")
    nodes = len(slowest.nodes)
    hops = 2 * (slowest.ranks / nodes - 1) * INTRA_HOP_S + 2 * math.log2(nodes) * INTER_HOP_S
    moved = 2 * slowest.num_bytes * (slowest.ranks - 1) / slowest.ranks
    return bandwidth, max(SHORTEST_S, slowest.seconds - hops - moved / (bandwidth * 1e9))


def _shortest(probe: Probe, scope: Scope, ranks: int | None, operation: Operation) -> Collective:
    """Returns the slowest group's `operation` at the size with the least time: the smallest, except on busy hosts."""
    of_sizes: dict[int, Collective] = {}
    for row in probe.collectives:
        if (row.scope, row.operation) == (scope, operation) and ranks in (None, row.ranks):
            of_sizes[row.num_bytes] = max(row, of_sizes.get(row.num_bytes, row), key=lambda group: group.seconds)
    return min(of_sizes.values(), key=lambda group: group.seconds)
