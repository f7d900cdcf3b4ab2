"""The nodes on which a search may begin a trial now: those it began with, and equal nodes that joined."""

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from platform.cluster import preflight
from platform.cluster.nodes import ClusterHandle, Node, facts_of, node_of, unlike_gpus
from platform.common.errors import ClusterError
from platform.common.output import print_line
from platform.common.text import plural

LOOK_S = 2.0
"""Seconds for which Ray's answer on its nodes is cached."""


class UsableNodes:
    """Addresses of present nodes by Ray id, in a stable order. Calls Ray."""

    def __init__(self, handle: ClusterHandle, study: Path, *, host_gib: float = 0.0) -> None:
        """Takes the cluster with which the search began, the folder of its study, and the host memory (GiB) that a node
        needs for its layouts.
        """
        self._handle, self._study, self._host_gib = handle, study, host_gib
        self._address_of = {node.id: node.address for node in handle.nodes}
        self._answers: dict[str, tuple[Any, float]] = {}
        """By id of a node that joined: the pending answer, and when it was requested."""
        self._refused: set[str] = set()
        """Ids of nodes that are left out."""
        self._alive: Collection[str] = ()
        self._usable: dict[str, str] = {}
        self._looked_s = float("-inf")

    def __call__(self) -> Mapping[str, str]:
        """Returns the nodes. A joined node counts once its facts equal the others'; otherwise a sentence is printed."""
        if time.monotonic() - self._looked_s > LOOK_S:
            self._look()
            self._looked_s = time.monotonic()
        return self._usable

    def _look(self) -> None:
        import ray

        alive: dict[str, dict[str, Any]] = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        self._alive = alive
        num_gpus = self._handle.cluster.devices_per_node if self._handle.has_gpus else 0
        for node_id, entry in alive.items():
            is_new = node_id not in self._address_of and node_id not in self._refused
            # On a cluster whose slow nodes are left out, the speed of a new node is unknown.
            if not is_new or self._handle.left_out:
                continue
            gpus_there = int(entry["Resources"].get("GPU", 0))
            if gpus_there not in (0, num_gpus):
                others = f"the others {num_gpus or 'none'}"
                self._refuse(node_id, entry["NodeManagerAddress"], f"it has {plural(gpus_there, 'GPU')}, {others}")
            elif gpus_there == num_gpus and (num_gpus or entry["Resources"].get("CPU", 0)):
                self._ask(ray, entry)
        self._usable = {node_id: address for node_id, address in self._address_of.items() if node_id in alive}

    def _ask(self, ray: Any, entry: dict[str, Any]) -> None:
        """Requests the facts of a node that joined, or reads its answer."""
        node_id: str = entry["NodeID"]
        if node_id not in self._answers:
            self._answers[node_id] = (facts_of(ray, entry, on_gpu=self._handle.has_gpus), time.time())
            return
        answer, sent_s = self._answers[node_id]
        ready, _ = ray.wait([answer], timeout=0)
        if not ready:
            return
        del self._answers[node_id]
        address = entry["NodeManagerAddress"]
        try:
            (facts,) = ray.get(ready)
            reason = self._refusal(node_of(entry, facts, sent_s=sent_s, got_s=time.time()))
        except ray.exceptions.RayError as error:
            reason = f"it does not answer ({type(error).__name__})"
        if reason:
            self._refuse(node_id, address, reason)
            return
        self._address_of[node_id] = address
        print_line(f"Node {address} joined: further trials may run there.")

    def _refuse(self, node_id: str, address: str, reason: str) -> None:
        self._refused.add(node_id)
        print_line(f"Node {address} joined and is left out: {reason}")

    def has_refused(self) -> bool:
        """Returns whether a node that was left out is present."""
        return any(node_id in self._alive for node_id in self._refused)

    def _refusal(self, node: Node) -> str:
        """Returns how a node differs from those that the search began with; "" if it does not."""
        if reason := unlike_gpus(self._handle.nodes[0], node):
            return reason
        handle = self._handle
        cores = min(other.num_cpus for other in handle.nodes)
        if handle.has_gpus:  # fewer cores are allowed if they suffice for the node's workers
            cores = min(cores, handle.cpus_per_worker * handle.cluster.devices_per_node)
        if node.num_cpus < cores:
            return f"it has {node.num_cpus:g} cores, and needs {cores:g} to run the same trials as the others"
        if (host_gib := float(node.facts["host_gib"])) < self._host_gib:
            return f"it has {host_gib:.0f} GiB of host memory, and offload moments needs {self._host_gib:.0f}"
        try:
            preflight.check((*self._handle.nodes, node), self._study)
        except ClusterError as error:
            return str(error)
        return ""
