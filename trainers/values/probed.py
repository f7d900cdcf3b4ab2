"""What `platform.probe` finds out about a cluster, as plain facts (no torch, no Ray)."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from trainers.values.cluster import Cluster

Operation = Literal["all_reduce", "all_gather", "reduce_scatter"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter")
Scope = Literal["node", "cluster", "pair"]
"""Who communicates: the devices of one node, every device of the cluster, the devices of two nodes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A square matrix product on one device."""

    precision: str
    size: int
    tflops: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFigures:
    """One device."""

    rank: int
    node: int
    """Index into `Probe.nodes`."""
    products: tuple[Product, ...]
    copy_gb_per_s: float
    """Bytes read and written in a copy within the device's memory, a second."""
    context_gib: float | None = None
    """What the device held before anything was computed: a bare context, with what other processes hold. None: CPU."""
    outside_gib: float | None = None
    """The same after all collectives: context, libraries and communicators."""

    def best_tflops(self, precision: str) -> float | None:
        """Returns the best size of `precision`, None where it was not measured."""
        return max((each.tflops for each in self.products if each.precision == precision), default=None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective of one group, as its slowest rank saw it.

    Bytes and bandwidths as in nccl-tests (doc/PERFORMANCE.md): the size is that of the whole tensor, the bus bandwidth
    is what passes each rank's link.
    """

    scope: Scope
    nodes: tuple[int, ...]
    ranks: int
    operation: Operation
    num_bytes: int
    seconds: float

    @property
    def algorithm_gb_per_s(self) -> float:
        """Bytes of the tensor a second."""
        return self.num_bytes / self.seconds / 1e9

    @property
    def bus_gb_per_s(self) -> float:
        """An all-reduce moves 2 (n-1)/n of its bytes over each link, the others (n-1)/n."""
        moved = (self.ranks - 1) / self.ranks
        return self.algorithm_gb_per_s * moved * (2 if self.operation == "all_reduce" else 1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A cluster as it was measured."""

    fingerprint: str
    cluster: Cluster
    software: Mapping[str, str]
    """Versions that the fingerprint counts: driver, torch, NCCL."""
    environment: Mapping[str, str]
    """The workers' settings that the figures depend on, such as NCCL_*."""
    nodes: tuple[str, ...]
    """Addresses, in the order of their first rank."""
    devices: tuple[DeviceFigures, ...]
    collectives: tuple[Collective, ...]
    cut_short: bool = False
    """Whether the time ended before everything was measured."""
    seconds: float = 0.0
    """What the command took."""
    finished: str = ""
    """UTC, ISO 8601."""

    def of_size(self, scope: Scope, operation: Operation, *, largest: bool) -> list[Collective]:
        """Returns every group's `operation` at the largest or smallest size that was measured; empty where none was."""
        found = [each for each in self.collectives if (each.scope, each.operation) == (scope, operation)]
        pick = max if largest else min
        wanted = pick((each.num_bytes for each in found), default=0)
        return [each for each in found if each.num_bytes == wanted]
