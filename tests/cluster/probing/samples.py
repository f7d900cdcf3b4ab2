"""Invented probes."""

import dataclasses

from trainers.records.probe import OPERATIONS, Collective, DeviceFigures, Probe, Product
from trainers.spec.cluster import Cluster

H200S = Cluster(
    device_kind="cuda",
    device="NVIDIA H200",
    device_memory_gib=139.8,
    capability=(9, 0),
    num_nodes=4,
    devices_per_node=2,
)


def device(rank: int, *, tflops: float = 798.0, copy_gb_per_s: float = 4290.0) -> DeviceFigures:
    """Returns a device of `H200S` whose fp32 products run at the catalogue's rate."""
    products = (
        Product(precision="bf16", size=1024, tflops=tflops / 2),
        Product(precision="bf16", size=8192, tflops=tflops),
        Product(precision="fp32", size=8192, tflops=0.85 * 66.9),
    )
    return DeviceFigures(
        rank=rank,
        node=rank // 2,
        products=products,
        copy_gb_per_s=copy_gb_per_s,
        context_gib=0.5,
        outside_gib=2.0,
    )


def collectives(scope: str, nodes: tuple[int, ...], ranks: int, bus_gb_per_s: float) -> list[Collective]:
    """Returns each operation at two sizes, on links of this bandwidth and 50 us latency."""
    all_collectives: list[Collective] = []
    for operation in OPERATIONS:
        for num_bytes in (2**16, 2**28):
            moved = num_bytes * (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
            all_collectives.append(
                Collective(
                    scope=scope,  # type: ignore[arg-type]
                    nodes=nodes,
                    ranks=ranks,
                    operation=operation,
                    num_bytes=num_bytes,
                    seconds=50e-6 + moved / (bus_gb_per_s * 1e9),
                )
            )
    return all_collectives


def probe(**changes: object) -> Probe:
    """Returns a probe of four equal nodes of two H200, with `changes`."""
    even = Probe(
        fingerprint="0123456789ab",
        cluster=H200S,
        software={"driver": "580", "torch": "2.13.0"},
        environment={},
        nodes=("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"),
        devices=tuple(device(rank) for rank in range(8)),
        collectives=(
            *(collective for node in range(4) for collective in collectives("node", (node,), 2, 300.0)),
            *collectives("cluster", (0, 1, 2, 3), 8, 40.0),
            *(collective for node in range(4) for collective in collectives("pair", (node, (node + 1) % 4), 4, 42.0)),
        ),
    )
    return dataclasses.replace(even, **changes)  # type: ignore[arg-type]
