"""Parses device prices given per cluster, node or device hour."""

import re
from collections.abc import Iterable, Sequence

from platform.common.errors import InputError
from platform.cost_model.hardware import ClusterSpec, find_cluster, node_names
from platform.plan.networks import split_network

_LARGEST = 1e6
"""Largest price of a device per hour."""
_PRICE = re.compile(r"\$?\s*(\d+\.?\d*|\.\d+)\s*(?:USD)?\s*(?:/\s*h)?")


def price_of(cluster: ClusterSpec, prices: Sequence[str], per_device: float | None) -> float | None:
    """Returns the price of a device of `cluster` per hour from `--price`, an entry for its node before one for its
    device, else from `--price-per-gpu-h`; None if neither states one.

    Raises:
        InputError: an entry is malformed.
    """
    read = [_read(written) for written in prices]
    of_node = [hourly for priced, hourly in read if priced.name == cluster.name and priced.name in node_names()]
    of_device = [hourly for priced, hourly in read if priced.name not in node_names() and _same(priced, cluster)]
    return next(iter((*of_node, *of_device)), per_device)


def check_prices(prices: Sequence[str], clusters: Iterable[ClusterSpec]) -> None:
    """Checks that each price belongs to one of the clusters.

    Raises:
        InputError: a price belongs to none.
    """
    listed = list(clusters)
    for written in prices:
        priced, _ = _read(written)
        named = priced.name in node_names()
        if not any(priced.name == cluster.name if named else _same(priced, cluster) for cluster in listed):
            devices = ", ".join(dict.fromkeys(cluster.device.name for cluster in listed))
            raise InputError(f"--price {written} is of none of the clusters, whose devices are {devices}: leave it out")


def _same(priced: ClusterSpec, cluster: ClusterSpec) -> bool:
    return priced.device.name == cluster.device.name


def _read(written: str) -> tuple[ClusterSpec, float]:
    """Returns (cluster with a price, price of one of its devices per hour)."""
    name, sign, text = written.rpartition("=")
    match = _PRICE.fullmatch(text.strip())
    if not sign or not name.strip() or match is None or not 0 < float(match[1]) <= _LARGEST:
        raise InputError(f"--price states dollars an hour, as in 8xB200=60/h or H100=2.5/h, got {written!r}")
    cluster = find_cluster(split_network(name)[0])
    return cluster, float(match[1]) / cluster.num_devices
