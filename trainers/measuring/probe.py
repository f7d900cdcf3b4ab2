"""Train function of `platform.probe`: measures a rank's device and links, in step with all other ranks.

A study's first trial runs a short version within seconds, links first.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch
import torch.distributed as dist

from trainers.measuring import matmul_peak, network
from trainers.measuring.conditions import environment
from trainers.measuring.device import CpuClock, CudaClock, CudaMeter
from trainers.measuring.probe_size import COPY_BYTES, WHOLE, short_size
from trainers.records.probe import (
    OPERATIONS,
    Collective,
    DeviceFigures,
    LibraryChoice,
    Operation,
    Product,
    Scope,
)
from trainers.spec.codec import to_json

LEAST_RUNS = 5
"""Least number of runs of a collective that is run more than once, including warm-up."""
PRODUCTS_SHARE = 0.2
"""Share of a short probe's time kept for products and copies."""
ONE_SHARE = 0.25
"""Largest share of the remaining time for all runs of one collective at one size."""
FIRST_SHARE = 0.5
"""Largest share of the remaining time for the first run of a collective, extrapolated from a smaller size. The
extrapolation is too high if start-up dominates.
"""


def train(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Runs the probe as Ray Train's train function; `config` has `left_s`. Returns the fields of `Probe` on rank 0,
    else None.
    """
    node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    return probe(left_s=config["left_s"], node=node, address=address)


def probe(*, left_s: float, node: str, address: str, precision: str | None = None) -> dict[str, Any] | None:
    """Runs the probe on ranks of any origin; `node` identifies the machine, `address` is its name. With `precision` it
    is the short probe of a trial with products of that precision. No measurement starts after `left_s` seconds by any
    rank's clock.
    """
    return _Rank(left_s, node, address, precision).run()


class _Rank:
    """One rank of the probe. Every rank must call the same methods in the same order."""

    def __init__(self, left_s: float, node: str, address: str, precision: str | None) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.kind == "cuda" else torch.device("cpu")
        self.is_short = precision is not None
        self.environment = environment()
        self.log = network.log_nccl() if self.kind == "cuda" and not self.is_short else None
        self.address = address
        self.size = WHOLE[self.kind] if precision is None else short_size(self.kind, precision)
        self.context_gib = None if self.is_short else self._outside_gib()
        if self.is_short:  # connects all ranks, as the trial needs anyway; takes NCCL seconds over TCP
            dist.all_reduce(torch.zeros(1, device=self.device), group=dist.group.WORLD)
            self._wait_for_device()
        self.until_s = time.monotonic() + left_s
        # Agreements between hosts use gloo, so that they neither wait for the device nor warm up its links.
        self.control = dist.new_group(backend="gloo") if self.kind == "cuda" else dist.group.WORLD
        placed = self._gather((node, address))
        keys = list(dict.fromkeys(node_key for node_key, _ in placed))
        self.node_of = [keys.index(node_key) for node_key, _ in placed]
        self.nodes = [next(place for node_key, place in placed if node_key == key) for key in keys]
        self.cut_short = False

    def run(self) -> dict[str, Any] | None:
        """Runs all measurements: devices first, each alone, then collectives from near to far. A trial has only
        seconds, so it measures links first.
        """
        collectives = self._collectives() if self.is_short else []
        products, copy_gb_per_s = self._products(), self._copy_gb_per_s()
        if not self.is_short:
            collectives = self._collectives()
        own_figures = DeviceFigures(
            rank=self.rank,
            node=self.node_of[self.rank],
            products=products,
            copy_gb_per_s=copy_gb_per_s,
            context_gib=self.context_gib,
            outside_gib=None if self.is_short else self._outside_gib(),
        )
        devices = self._gather(to_json(own_figures))
        cut_short = any(self._gather(self.cut_short))
        adapters = self._gather(network.adapters())
        choice = self._choice()
        if self.rank:
            return None
        return {
            "nodes": self.nodes,
            "devices": devices,
            "collectives": to_json(collectives),
            "environment": self.environment,
            "adapters": [to_json(adapters[self.node_of.index(node)]) for node in range(len(self.nodes))],
            "choice": to_json(choice),
            "cut_short": cut_short,
        }

    def _choice(self) -> LibraryChoice | None:
        """Returns the communication library's choice; None for a short probe on GPUs, which writes no log."""
        if self.kind == "cpu":
            return network.gloo_choice(self._gather(network.interface_of(self.address)), len(self.nodes))
        if self.log is None:
            return None
        log = self.log.read_text(errors="replace")
        self.log.unlink()
        return network.nccl_choice(self._gather(log))

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def _outside_gib(self) -> float | None:
        if self.kind == "cpu":
            return None
        torch.zeros(1, device=self.device)  # creates the context if there is none yet
        return CudaMeter().outside_gib()

    def _wait_for_device(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def _late(self) -> bool:
        """Returns whether any rank is out of time; if so, nothing new starts from then on."""
        self.cut_short = self.cut_short or any(self._gather(time.monotonic() > self.until_s))
        return self.cut_short

    def _products(self) -> tuple[Product, ...]:
        products: list[Product] = []
        for precision in self.size.precisions:
            for size in self.size.product_sizes:
                if self._late():
                    return tuple(products)
                tflops = matmul_peak.product_tflops(self.device, (size, size, size), precision, self.size.product_s)
                products.append(Product(precision=precision, size=size, tflops=tflops))
        return tuple(products)

    def _copy_gb_per_s(self) -> float:
        num_bytes = COPY_BYTES[self.kind]
        if self.kind == "cuda":
            num_bytes = min(num_bytes, torch.cuda.mem_get_info()[0] // 4)
        source = torch.ones(num_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self._gather(None)  # all ranks start at once, because CPU workers of a host share its memory
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

    def _once_s(self, work: Callable[[], Any]) -> float:
        clock = CudaClock() if self.kind == "cuda" else CpuClock()
        clock.mark()
        work()
        clock.mark()
        return clock.finish()[0]

    def _members(self, *nodes: int) -> list[int]:
        return [rank for rank, node in enumerate(self.node_of) if node in nodes]

    def _collectives(self) -> list[Collective]:
        """Measures all collectives. A short probe starts with the most important ones and gives each scope an equal
        part of the time.
        """
        if not self.is_short:
            return [*self._parts_of_nodes(), *self._nodes_apart(), *self._whole_cluster(), *self._pairs()]
        per_node = max(len(self._members(node)) for node in range(len(self.nodes)))
        scopes = [self._whole_cluster] * (len(self.nodes) > 1) + [self._nodes_apart] * (per_node > 1)
        scopes += [self._parts_of_nodes] * (per_node > 2)
        collectives: list[Collective] = []
        until_s, is_cut = self.until_s, False
        end_s = until_s - PRODUCTS_SHARE * (until_s - time.monotonic())
        for place, scope in enumerate(scopes):
            now_s = time.monotonic()
            self.until_s, self.cut_short = now_s + (end_s - now_s) / (len(scopes) - place), False
            collectives += scope()
            is_cut = is_cut or self.cut_short
        self.until_s, self.cut_short = until_s, is_cut
        return collectives

    def _parts_of_nodes(self) -> list[Collective]:
        """Measures all-reduce in each group of 2, 4, ... consecutive devices of a node, all groups at once. Shows nodes
        of Ray that are several hosts to NCCL, and faster links between some devices.
        """
        per_node = [len(self._members(node)) for node in range(len(self.nodes))]
        collectives: list[Collective] = []
        size = 2
        while len(set(per_node)) == 1 and size < per_node[0] and per_node[0] % size == 0:
            parts = [
                (node, members[first : first + size])
                for node in range(len(self.nodes))
                for members in [self._members(node)]
                for first in range(0, len(members), size)
            ]
            ends = (self.size.message_bytes[0], self.size.message_bytes[-1])
            collectives += self._among("part", [((node,), ranks) for node, ranks in parts], ends, OPERATIONS[:1])
            size *= 2
        return collectives

    def _nodes_apart(self) -> list[Collective]:
        """Measures collectives among each node's devices, on all nodes at once."""
        return self._sweep("node", [(node,) for node in range(len(self.nodes))], self.size.message_bytes)

    def _whole_cluster(self) -> list[Collective]:
        if len(self.nodes) == 1:
            return []
        return self._sweep("cluster", [tuple(range(len(self.nodes)))], self.size.message_bytes)

    def _pairs(self) -> list[Collective]:
        """Measures neighbours on a ring of nodes, disjoint pairs at once: a slow node is slow with both neighbours."""
        count = len(self.nodes)
        if count < 3:
            return []
        edges = [(first, (first + 1) % count) for first in range(count)]
        last = [edges[-1]] if count % 2 else []
        inner = edges[:-1] if last else edges
        largest = self.size.message_bytes[-1:]
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
        operations: tuple[Operation, ...] | None = None,
    ) -> list[Collective]:
        """Measures each operation and size within disjoint `parties` (groups of nodes), all at the same time."""
        return self._among(
            scope, [(party, self._members(*party)) for party in parties], sizes, operations or self.size.operations
        )

    def _among(
        self,
        scope: Scope,
        groups: list[tuple[tuple[int, ...], list[int]]],
        sizes: tuple[int, ...],
        operations: tuple[Operation, ...],
    ) -> list[Collective]:
        """Measures each operation and size within disjoint groups, given as (nodes, ranks), all at the same time."""
        members = [ranks for _, ranks in groups]
        own_group: Any = None
        for ranks in members:
            is_world = len(ranks) == self.world  # the trial needs this group's connections anyway
            # Creating a group is a collective of all ranks.
            group = dist.group.WORLD if is_world else dist.new_group(ranks) if len(ranks) > 1 else None
            own_group = group if self.rank in ranks else own_group
        if all(len(ranks) == 1 for ranks in members):
            return []
        collectives = self._measured(scope, groups, own_group, sizes, operations)
        if own_group not in (None, dist.group.WORLD) and self.is_short:
            dist.destroy_process_group(own_group)  # frees memory before the trial's memory is measured
        return collectives

    def _measured(
        self,
        scope: Scope,
        groups: list[tuple[tuple[int, ...], list[int]]],
        own_group: Any,
        sizes: tuple[int, ...],
        operations: tuple[Operation, ...],
    ) -> list[Collective]:
        collectives: list[Collective] = []
        for operation in operations:
            before = (0, 0.0)
            for num_bytes in sizes:
                if self._late() or self._is_too_long(before, num_bytes):
                    break  # larger sizes take longer still
                seconds = self._collective_s(operation, num_bytes, own_group)
                if seconds is None:
                    break
                took = self._gather(seconds)
                before = (num_bytes, max(took))
                collectives += [
                    Collective(
                        scope=scope,
                        nodes=party,
                        ranks=len(ranks),
                        operation=operation,
                        num_bytes=num_bytes,
                        seconds=max(took[rank] for rank in ranks),
                    )
                    for party, ranks in groups
                    if len(ranks) > 1
                ]
        return collectives

    def _is_too_long(self, before: tuple[int, float], num_bytes: int) -> bool:
        """Returns whether a collective of `num_bytes` would take more than `FIRST_SHARE` of the remaining time on any
        rank, extrapolated from `before`, the (bytes, seconds) of a smaller one. On a slow link the largest takes
        minutes.
        """
        smaller, seconds = before
        expected_s = seconds * num_bytes / smaller if smaller else 0.0
        return any(self._gather(expected_s > FIRST_SHARE * (self.until_s - time.monotonic())))

    def _collective_s(self, operation: Operation, num_bytes: int, group: Any) -> float | None:
        """Returns the median seconds of a collective of `num_bytes` in this rank's group; 0 without a group, None if
        time ran out.

        The first run is not counted, because the library connects the ranks in it, which takes NCCL a second. All ranks
        repeat it equally often, within the size's seconds for the slowest rank, or once if too little time is left.
        """
        work = _work(operation, num_bytes, group, self.device) if group is not None else (lambda: None)
        self._once_s(work)
        if self._late():
            return None
        slowest = max(self._gather(self._once_s(work) if group is not None else 0.0))
        if any(self._gather(LEAST_RUNS * slowest > ONE_SHARE * (self.until_s - time.monotonic()))):
            return slowest
        count = max(3, min(50, int(self.size.collective_s / max(slowest, 1e-9))))
        return self._median_s(work, count) if group is not None else 0.0


def _work(operation: Operation, num_bytes: int, group: Any, device: torch.device) -> Callable[[], Any]:
    """Returns a call that runs `operation` on a fp32 tensor of `num_bytes`, rounded up to equal parts for all ranks."""
    ranks = dist.get_world_size(group)
    # The successors in torch 2.13 (all_gather_single, reduce_scatter_single) do not exist in 2.11.
    share = torch.ones(-(-num_bytes // 4 // ranks), device=device)
    full = torch.ones(share.numel() * ranks, device=device)
    return {
        "all_reduce": lambda: dist.all_reduce(full, op=dist.ReduceOp.MAX, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(full, share, group=group),  # pyright: ignore[reportDeprecated]
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, full, group=group),  # pyright: ignore[reportDeprecated]
    }[operation]
