"""The nodes of a Ray cluster: the facts of each, and their combination."""

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from platform.common.errors import InputError
from trainers.spec.cluster import Cluster

ANSWER_S = 120.0
"""Seconds that the slowest node may take to start a process and answer."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node that may run workers."""

    id: str
    """Ray's id of the node."""
    address: str
    num_cpus: float
    num_gpus: int
    facts: Mapping[str, Any]
    """The result of `trainers.host.node.facts` on the node."""
    clock_off_s: float = 0.0
    """Least difference in seconds between the node's clock and the driver's; positive if the node's is ahead."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClusterHandle:
    """A Ray cluster that this process is connected to."""

    cluster: Cluster
    """The cluster's devices, or CPU workers if it has no GPU."""
    cpus_per_worker: float
    driver_ip: str
    """Address of the driver's node, to which the Tune side of every trial is pinned."""
    software: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Versions on the nodes that figures depend on (driver, torch, NCCL); differing ones are all listed."""
    nodes: tuple[Node, ...] = ()
    """The nodes on which workers are placed."""
    left_out: bool = False
    """Whether the cluster has further nodes on which no worker may be placed."""
    head: str = ""
    """The cluster's head as HOST:PORT."""
    raylet: str = ""
    """The raylet (Ray's process on the driver's node) as HOST:PORT."""
    is_local: bool = False
    """Whether this process started the Ray, which then ends with it."""

    @property
    def has_gpus(self) -> bool:
        return self.cluster.device_kind == "cuda"


def ask(ray: Any) -> list[Node]:
    """Returns every node with GPUs (all nodes if none has any), with their facts.

    Raises Ray's errors if a node does not answer.
    """
    alive = [entry for entry in ray.nodes() if entry["Alive"]]
    with_gpu = [entry for entry in alive if entry["Resources"].get("GPU", 0) >= 1]
    sent_s = time.time()
    answers: dict[Any, dict[str, Any]] = {}
    for entry in with_gpu or [record for record in alive if record["Resources"].get("CPU", 0)] or alive:
        answers[facts_of(ray, entry, on_gpu=bool(with_gpu))] = entry
    nodes: list[Node] = []
    waiting, until_s = list(answers), time.monotonic() + ANSWER_S
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, until_s - time.monotonic()))
        got_s = time.time()
        (facts,) = ray.get(ready, timeout=1) if ready else ray.get(waiting[:1], timeout=1)
        nodes.append(node_of(answers[ready[0]], facts, sent_s=sent_s, got_s=got_s))
    order = [entry["NodeID"] for entry in alive]
    return sorted(nodes, key=lambda member: order.index(member.id))


def facts_of(ray: Any, entry: Mapping[str, Any], *, on_gpu: bool) -> Any:
    """Starts a request for the facts of a node, given Ray's entry; returns Ray's reference to the answer."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from trainers.host import node

    strategy = NodeAffinitySchedulingStrategy(entry["NodeID"], soft=False)
    return ray.remote(node.facts).options(num_cpus=0, scheduling_strategy=strategy).remote(on_gpu)


def node_of(entry: Mapping[str, Any], facts: Mapping[str, Any], *, sent_s: float, got_s: float) -> Node:
    """Returns the node of Ray's entry. Its facts were requested at `sent_s` and received at `got_s` (Unix seconds)."""
    return Node(
        id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        num_cpus=entry["Resources"].get("CPU", 0.0),
        num_gpus=int(entry["Resources"].get("GPU", 0)),
        facts=facts,
        # The node read its clock between these two times.
        clock_off_s=max(0.0, facts["unix_s"] - got_s) - max(0.0, sent_s - facts["unix_s"]),
    )


def unlike_gpus(node: Node, other: Node) -> str:
    """Returns a clause on how another node's devices differ from `node`'s; "" if they are equal."""
    if not node.num_gpus or _gpus_of(node.facts) == _gpus_of(other.facts):
        return ""
    return f"it has {_gpus_of(other.facts)}, the others {_gpus_of(node.facts)}"


def this_machine() -> Node:
    """Returns this machine as the only node of a cluster, without Ray."""
    from trainers.host import node

    num_gpus = _visible_gpus()
    return Node(
        id="this machine",
        address="127.0.0.1",
        num_cpus=len(os.sched_getaffinity(0)),
        num_gpus=num_gpus,
        facts=node.facts(num_gpus > 0),
    )


def _visible_gpus() -> int:
    """Returns the number of this machine's GPUs that a process may use: all, or those of CUDA_VISIBLE_DEVICES."""
    import pynvml

    try:
        pynvml.nvmlInit()
        num_gpus = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # no driver
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    return min(
        num_gpus, sum(bool(gpu.strip()) and gpu.strip() not in ("-1", "NoDevFiles") for gpu in visible.split(","))
    )


def handle_of(nodes: Sequence[Node], *, cpu_workers: int, driver_ip: str, left_out: bool = False) -> ClusterHandle:
    """Returns the cluster that `nodes` form together.

    Raises:
        InputError: they have unlike GPUs.
    """
    facts = [node.facts for node in nodes]
    if not any(node.num_gpus for node in nodes):
        share = _cpu_share([node.num_cpus for node in nodes], cpu_workers)
        cluster = Cluster(
            device_kind="cpu",
            device=facts[0]["device"],
            device_memory_gib=facts[0]["memory_gib"] / cpu_workers,
            devices_per_node=cpu_workers,
        )
    else:
        kinds = sorted({_gpus_of(fact) for fact in facts})
        counts = {node.num_gpus for node in nodes}
        if len(kinds) > 1 or any("mixed" in fact for fact in facts):
            raise InputError(f"the cluster mixes GPU types ({' and '.join(kinds)}): one study measures one type")
        if len(counts) > 1:
            numbers = " and ".join(map(str, sorted(counts)))
            raise InputError(f"the cluster's nodes have unlike numbers of GPUs ({numbers}): give equal nodes")
        per_node = counts.pop()
        cpus = min(node.num_cpus or 1 for node in nodes)
        share = max(0.1, min(8.0, (cpus - 0.5) / per_node // 1 or round((cpus - 0.5) / per_node, 2)))
        cluster = Cluster(
            device_kind="cuda",
            device=facts[0]["device"],
            device_memory_gib=facts[0]["memory_gib"],
            capability=facts[0]["capability"],
            num_nodes=len(nodes),
            devices_per_node=per_node,
            host_share_gib=min(fact["host_gib"] for fact in facts) / per_node,
        )
    return ClusterHandle(
        cluster=cluster,
        cpus_per_worker=share,
        driver_ip=driver_ip,
        software=_side_by_side(facts),
        nodes=tuple(nodes),
        left_out=left_out,
    )


def _cpu_share(cpus: Sequence[float], num_workers: int) -> float:
    """Returns the CPUs for each of `num_workers` workers: the most, up to 1, with which all fit on whole nodes.

    `cpus` are the nodes' CPUs. A small part of each node stays free: two workers with a whole CPU each and Tune's share
    would not fit on two cores.
    """
    left_over = max(0.1, 0.2 / len(cpus))
    free = [num_cpus - left_over for num_cpus in cpus if num_cpus > left_over]
    shares = {min(1.0, spare / count) for spare in free for count in range(1, num_workers + 1)}
    fitting = (share for share in shares if sum(int(spare / share + 1e-9) for spare in free) >= num_workers)
    return max(0.1, math.floor(100 * max(fitting, default=0.0) + 1e-9) / 100)


def _gpus_of(fact: Mapping[str, Any]) -> str:
    if "mixed" in fact:
        return f"{' and '.join(fact['mixed'])} in one node"
    return f"{fact['device']} of {fact['memory_gib']:g} GiB"


def _side_by_side(facts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = sorted({name for fact in facts for name in fact["software"]})
    return {name: "/".join(sorted({fact["software"].get(name, "none") for fact in facts})) for name in names}
