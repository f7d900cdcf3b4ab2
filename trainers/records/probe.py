"""The results of `platform.probe` on a cluster, as plain facts. Imports no torch, no Ray."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from trainers.spec.cluster import Cluster

Operation = Literal["all_reduce", "all_gather", "reduce_scatter"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter")
Scope = Literal["part", "node", "cluster", "pair"]
"""The devices that communicate: some neighbours of one node, all of one node, all of the cluster, or all of two nodes.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A square matrix product on one device."""

    precision: str
    size: int
    tflops: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFigures:
    """The results on one device."""

    rank: int
    node: int
    """Index into `Probe.nodes`."""
    products: tuple[Product, ...]
    copy_gb_per_s: float
    """GB/s of a copy within the device's memory; bytes read and written both count."""
    context_gib: float | None = None
    """GiB that the device held before any computation: a bare context, and other processes' memory. None for a CPU."""
    outside_gib: float | None = None
    """GiB that it held after all collectives: context, libraries and communicators."""

    def best_tflops(self, precision: str) -> float | None:
        """Returns the TFLOP/s of `precision` at its best size, None if it was not measured."""
        return max((product.tflops for product in self.products if product.precision == precision), default=None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """A collective in one group, timed on its slowest rank.

    Bytes and bandwidths as in nccl-tests (doc/PERFORMANCE.md): the size counts the whole tensor, the bus bandwidth is
    per link of a rank.
    """

    scope: Scope
    nodes: tuple[int, ...]
    ranks: int
    operation: Operation
    num_bytes: int
    seconds: float

    @property
    def algorithm_gb_per_s(self) -> float:
        """The tensor's bytes over the time."""
        return self.num_bytes / self.seconds / 1e9

    @property
    def bus_gb_per_s(self) -> float:
        """Bandwidth of a link: an all-reduce moves 2 (n-1)/n of its bytes over each link, the others (n-1)/n."""
        moved = (self.ranks - 1) / self.ranks
        return self.algorithm_gb_per_s * moved * (2 if self.operation == "all_reduce" else 1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A network adapter of a host that is up; each of several ports counts as one."""

    name: str
    """The interface, such as "eth0", or the device and its port, such as "mlx5_0:1"."""
    kind: Literal["Ethernet", "InfiniBand", "RoCE"]
    gbit_per_s: float | None = None
    """None if the kernel does not state it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LibraryChoice:
    """The communication library's choices among the ranks."""

    library: Literal["NCCL", "gloo"]
    hosts: int | None = None
    """Number of hosts on which the library sees the ranks."""
    networks: tuple[str, ...] = ()
    """Its networks between hosts, by its own names, such as "IB", "Socket"; empty if it uses none."""
    interfaces: tuple[str, ...] = ()
    """The interfaces or devices of these networks."""
    inside: tuple[str, ...] = ()
    """Its transports inside a host: "P2P" or "SHM"."""
    channels: int | None = None
    """Number of channels of the collective with the fewest."""
    gpu_direct: bool | None = None
    """Whether the network reads the GPUs' memory (GPUDirect RDMA)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The results on a cluster."""

    fingerprint: str
    cluster: Cluster
    software: Mapping[str, str]
    """Versions that the fingerprint includes: driver, torch, NCCL."""
    environment: Mapping[str, str]
    """The workers' environment variables that affect the figures, such as NCCL_*."""
    nodes: tuple[str, ...]
    """Addresses, in the order of their first rank."""
    devices: tuple[DeviceFigures, ...]
    collectives: tuple[Collective, ...]
    adapters: tuple[tuple[Adapter, ...], ...] = ()
    """The adapters of each node; empty in probes older than this field."""
    choice: LibraryChoice | None = None
    """None if the library does not show it, and in older probes."""
    cut_short: bool = False
    """Whether time ran out before everything was measured."""
    seconds: float = 0.0
    """Duration of the command in seconds."""
    finished: str = ""
    """Time of the end, UTC, ISO 8601."""

    def of_size(
        self, scope: Scope, operation: Operation, ranks: int | None = None, *, largest: bool
    ) -> list[Collective]:
        """Returns every group's `operation` at the largest or smallest measured size, restricted to groups of `ranks`
        if given.
        """
        rows = [
            collective
            for collective in self.collectives
            if (collective.scope, collective.operation) == (scope, operation) and ranks in (None, collective.ranks)
        ]
        pick = max if largest else min
        num_bytes = pick((row.num_bytes for row in rows), default=0)
        return [row for row in rows if row.num_bytes == num_bytes]
