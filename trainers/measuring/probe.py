"""The train function of `platform.probe`: measures one rank's device and links, in agreement with all ranks."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch
import torch.distributed as dist

from trainers.measuring import matmul_peak
from trainers.measuring.conditions import environment
from trainers.measuring.device import CpuClock, CudaClock, CudaMeter
from trainers.records.probe import OPERATIONS, Collective, DeviceFigures, Operation, Product, Scope
from trainers.spec.codec import to_json

PRECISIONS = {"cuda": ("bf16", "fp16", "tf32", "fp32"), "cpu": ("fp32", "bf16")}
PRODUCT_SIZES = {"cuda": (1024, 2048, 4096, 8192), "cpu": (256, 512, 1024)}
PRODUCT_S = {"cuda": 0.2, "cpu": 0.1}
"""Seconds for each size and precision."""
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}
MESSAGE_BYTES = {
    "cuda": (2**16, 2**19, 2**22, 2**25, 2**28),
    "cpu": (2**16, 2**18, 2**20, 2**22, 2**24),
}
COLLECTIVE_S = {"cuda": 0.1, "cpu": 0.05}
"""Seconds for each operation and size."""


def train(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Runs the probe as Ray Train's train function; `config` has `left_s`. Returns, on rank 0, the fields of
    `Probe`.
    """
    node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    return probe(left_s=config["left_s"], node=node, address=address)


def probe(*, left_s: float, node: str, address: str) -> dict[str, Any] | None:
    """Runs the probe on ranks of any origin: `node` identifies the machine, `address` is its name.

    Nothing new is begun once `left_s` seconds are over, by the clock of any rank.
    """
    return _Rank(left_s, node, address).run()


class _Rank:
    """One rank of the probe. Every rank calls the same methods in the same order."""

    def __init__(self, left_s: float, node: str, address: str) -> None:
        self.until_s = time.monotonic() + left_s
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.kind == "cuda" else torch.device("cpu")
        self.context_gib = self._outside_gib()
        # Agreements on the host go over gloo, so that they neither wait for the device nor warm its links up.
        self.control = dist.new_group(backend="gloo") if self.kind == "cuda" else dist.group.WORLD
        placed = self._gather((node, address))
        keys = list(dict.fromkeys(node_key for node_key, _ in placed))
        self.node_of = [keys.index(node_key) for node_key, _ in placed]
        self.nodes = [next(place for node_key, place in placed if node_key == key) for key in keys]
        self.cut_short = False

    def run(self) -> dict[str, Any] | None:
        """Runs all measurements: devices first, each alone, then collectives from near to far."""
        products, copy_gb_per_s = self._products(), self._copy_gb_per_s()
        collectives = [*self._nodes_apart(), *self._whole_cluster(), *self._pairs()]
        own_figures = DeviceFigures(
            rank=self.rank,
            node=self.node_of[self.rank],
            products=products,
            copy_gb_per_s=copy_gb_per_s,
            context_gib=self.context_gib,
            outside_gib=self._outside_gib(),
        )
        devices = self._gather(to_json(own_figures))
        cut_short = any(self._gather(self.cut_short))
        if self.rank:
            return None
        return {
            "nodes": self.nodes,
            "devices": devices,
            "collectives": to_json(collectives),
            "environment": environment(),
            "cut_short": cut_short,
        }

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def _outside_gib(self) -> float | None:
        if self.kind == "cpu":
            return None
        torch.zeros(1, device=self.device)  # the context itself, where it was not there yet
        return CudaMeter().outside_gib()

    def _late(self) -> bool:
        """Returns whether any rank is out of time; nothing new is begun from then on."""
        self.cut_short = self.cut_short or any(self._gather(time.monotonic() > self.until_s))
        return self.cut_short

    def _products(self) -> tuple[Product, ...]:
        products: list[Product] = []
        for precision in PRECISIONS[self.kind]:
            for size in PRODUCT_SIZES[self.kind]:
                if self._late():
                    return tuple(products)
                tflops = matmul_peak.product_tflops(self.device, (size, size, size), precision, PRODUCT_S[self.kind])
                products.append(Product(precision=precision, size=size, tflops=tflops))
        return tuple(products)

    def _copy_gb_per_s(self) -> float:
        num_bytes = COPY_BYTES[self.kind]
        if self.kind == "cuda":
            num_bytes = min(num_bytes, torch.cuda.mem_get_info()[0] // 4)
        source = torch.ones(num_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self._gather(None)  # devices of one host share nothing, CPU workers its memory: all begin at once
        return 2 * num_bytes / self._median_s(lambda: target.copy_(source), 20) / 1e9

    def _median_s(self, work: Callable[[], Any], count: int) -> float:
        """Returns the median seconds of `count` runs of `work`, after two warm-up runs."""
        for _ in range(2):
            work()
        clock = CudaClock() if self.kind == "cuda" else CpuClock()
        clock.mark()
        for _ in range(count):
            work()
            clock.mark()
        return sorted(clock.finish())[count // 2]

    def _members(self, *nodes: int) -> list[int]:
        return [rank for rank, node in enumerate(self.node_of) if node in nodes]

    def _nodes_apart(self) -> list[Collective]:
        """Measures collectives among each node's devices, on all nodes at once."""
        return self._sweep("node", [(node,) for node in range(len(self.nodes))], MESSAGE_BYTES[self.kind])

    def _whole_cluster(self) -> list[Collective]:
        if len(self.nodes) == 1:
            return []
        return self._sweep("cluster", [tuple(range(len(self.nodes)))], MESSAGE_BYTES[self.kind])

    def _pairs(self) -> list[Collective]:
        """Measures neighbours on a ring of nodes, disjoint pairs at once: a node that is slow with both neighbours
        lags.
        """
        count = len(self.nodes)
        if count < 3:
            return []
        edges = [(first, (first + 1) % count) for first in range(count)]
        last = [edges[-1]] if count % 2 else []
        inner = edges[:-1] if last else edges
        largest = MESSAGE_BYTES[self.kind][-1:]
        return [
            collective
            for at_once in (inner[0::2], inner[1::2], last)
            if at_once
            for collective in self._sweep("pair", at_once, largest, OPERATIONS[:1])
        ]

    def _sweep(
        self,
        scope: Scope,
        parties: list[tuple[int, ...]],
        sizes: tuple[int, ...],
        operations: tuple[Operation, ...] = OPERATIONS,
    ) -> list[Collective]:
        """Measures each operation and size in the groups of disjoint `parties` (nodes), all at the same time."""
        members = [self._members(*party) for party in parties]
        own_group: Any = None
        for ranks in members:
            group = dist.new_group(ranks) if len(ranks) > 1 else None  # every rank takes part in making every group
            own_group = group if self.rank in ranks else own_group
        collectives: list[Collective] = []
        if all(len(ranks) == 1 for ranks in members):
            return collectives
        for operation in operations:
            for num_bytes in sizes:
                if self._late():
                    return collectives
                took = self._gather(self._collective_s(operation, num_bytes, own_group))
                collectives += [
                    Collective(
                        scope=scope,
                        nodes=party,
                        ranks=len(ranks),
                        operation=operation,
                        num_bytes=num_bytes,
                        seconds=max(took[rank] for rank in ranks),
                    )
                    for party, ranks in zip(parties, members, strict=True)
                    if len(ranks) > 1
                ]
        return collectives

    def _collective_s(self, operation: Operation, num_bytes: int, group: Any) -> float:
        """Returns the median seconds of one collective of `num_bytes` in this rank's group; 0 where it has none.

        All ranks run it equally often, as often as fits `COLLECTIVE_S` for the slowest.
        """
        work = _work(operation, num_bytes, group, self.device) if group is not None else (lambda: None)
        slowest = max(self._gather(self._median_s(work, 1) if group is not None else 0.0))
        count = max(3, min(50, int(COLLECTIVE_S[self.kind] / slowest)))
        return self._median_s(work, count) if group is not None else 0.0


def _work(operation: Operation, num_bytes: int, group: Any, device: torch.device) -> Callable[[], Any]:
    """Returns a call that runs `operation` on a tensor of `num_bytes` in fp32, rounded up to whole shares of the
    ranks.
    """
    ranks = dist.get_world_size(group)
    # The names of torch 2.13's successors (all_gather_single, reduce_scatter_single) are unknown to 2.11.
    share = torch.ones(-(-num_bytes // 4 // ranks), device=device)
    full = torch.ones(share.numel() * ranks, device=device)
    return {
        "all_reduce": lambda: dist.all_reduce(full, op=dist.ReduceOp.MAX, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(full, share, group=group),  # pyright: ignore[reportDeprecated]
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, full, group=group),  # pyright: ignore[reportDeprecated]
    }[operation]
