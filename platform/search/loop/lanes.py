"""Decides which trials may run side by side, and on which nodes. Ray's placement groups put workers there."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from platform.cluster.nodes import ClusterHandle
from platform.common.text import plural
from platform.search.setup.options import SideBySide
from trainers.records.job import Job
from trainers.spec.cluster import Cluster

TUNE_CPU = 0.1
"""CPUs for Tune's side of all trials together."""
_WHOLE = 1 + 1e-9
"""A whole node, with a tolerance for sums of shares."""

Nodes = Callable[[], Mapping[str, str]]
"""Returns the address of each node that workers may use now, by Ray id, always in the same order."""


class Lanes:
    """The places for one search's trials that run side by side. By default there is one place, on any node."""

    def __init__(
        self,
        nodes: Nodes = dict,
        *,
        nodes_per_trial: int = 1,
        trials_per_node: int = 1,
        has_refused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`nodes_per_trial` is the number of nodes of a trial, `trials_per_node` the number of trials that share a node
        (1 for whole nodes). `has_refused` returns whether the cluster has further nodes on which no trial may run.
        """
        self._nodes, self._has_refused = nodes, has_refused
        self._lost: set[str] = set()
        """Ids of nodes that no longer answer; Ray may still count them for some seconds."""
        self.nodes_per_trial, self.trials_per_node = nodes_per_trial, trials_per_node

    def count(self, avoid: Collection[str] = ()) -> int:
        """Returns the number of trials that the nodes hold now, without the addresses to `avoid`."""
        return self._holds([node for node, address in self._answering().items() if address not in avoid])

    def lose(self, addresses: Collection[str]) -> None:
        """Excludes the nodes at these addresses. A node that joins again has another id and counts."""
        self._lost |= {node for node, address in self._nodes().items() if address in addresses}

    def _answering(self) -> dict[str, str]:
        return {node: address for node, address in self._nodes().items() if node not in self._lost}

    def place(
        self,
        running: Iterable[Job],
        avoid: Collection[str] = (),
        *,
        others: Iterable[Job] | None = None,
        slow: Collection[str] = (),
        is_alone: bool = False,
        at: Collection[str] = (),
    ) -> Mapping[str, str] | None:
        """Returns the addresses of the nodes for one more trial beside those `running` and those of the `others` that
        share the cluster (None: nobody does), by Ray's ids; None where they leave no room, empty for any nodes: where
        no more than one trial runs at a time, and no node was refused.

        A trial that `is_alone` shares its nodes with no other. It runs on the nodes at these addresses (`at`) where
        they are there. Nodes at the addresses to `avoid`, and those that are `slow`, are left out as long as others
        hold a trial.
        """
        jobs, nodes = tuple(running), self._nodes()
        num_held = self._holds(nodes)
        unwanted = {*avoid, *slow} & set(nodes.values())
        leaves_out = self._has_refused() or (unwanted and self.count(unwanted))
        if not num_held or (num_held == 1 and others is None and not leaves_out):
            return None if jobs else {}
        if any(not job.nodes for job in jobs):  # it may be on any node, because it began before others joined
            return None
        answering = self._answering()
        quiet = {node: address for node, address in answering.items() if address not in avoid}
        same = {node: address for node, address in quiet.items() if address in at}
        fast = {node: address for node, address in quiet.items() if address not in slow}
        choices = ((same,) if len(same) == self.nodes_per_trial else ()) + (fast, quiet, answering)
        nodes = next((choice for choice in choices if self._holds(choice)), nodes)
        shares = dict.fromkeys(nodes, 0.0)
        for job in (*jobs, *(others or ())):
            for node in shares.keys() & set(job.nodes):
                shares[node] += job.node_share
        share = 1.0 if is_alone else self.share
        # Nodes without a trial come first. Otherwise the order is kept, so that compared runs get the same nodes.
        free = sorted((node for node in nodes if shares[node] + share <= _WHOLE), key=shares.__getitem__)
        if len(free) < self.nodes_per_trial:
            return None
        return {node: nodes[node] for node in free[: self.nodes_per_trial]}

    @property
    def share(self) -> float:
        """The share of each of its nodes that a trial takes."""
        return 1 / self.trials_per_node

    def _holds(self, nodes: Collection[str]) -> int:
        return len(nodes) // self.nodes_per_trial * self.trials_per_node


def lanes_of(
    mode: SideBySide, cluster: Cluster, handle: ClusterHandle, nodes: Nodes, has_refused: Callable[[], bool]
) -> Lanes:
    """Returns the lanes for trials on `cluster`'s devices each, on the cluster of `handle`; see `Lanes`."""
    if mode == "off" or not handle.nodes:
        return Lanes()
    per_node = handle.cluster.devices_per_node
    if not handle.has_gpus:  # CPU workers are counted by their share of a node's cores
        least = min(node.num_cpus for node in handle.nodes) - max(TUNE_CPU, 0.2 / len(handle.nodes))
        per_node = max(1, math.floor(least / handle.cpus_per_worker + 1e-9))
    share = max(1, per_node // cluster.num_devices) if mode == "on" else 1
    per_trial = math.ceil(cluster.num_devices / per_node)
    return Lanes(nodes, nodes_per_trial=per_trial, trials_per_node=share, has_refused=has_refused)


def lanes_sentence(lanes: Lanes, mode: SideBySide) -> str:
    """Returns a sentence on trials side by side for a search's beginning; "" if there are none."""
    if (count := lanes.count()) > 1:
        nodes = plural(lanes.nodes_per_trial, "whole node")
        share = f"{lanes.trials_per_node} of them share each node" if lanes.trials_per_node > 1 else f"each on {nodes}"
        return f"Up to {count} trials run side by side, {share}; --side-by-side off runs one at a time."
    if mode == "on":
        return "One trial runs at a time: --side-by-side on finds no devices beside those that a trial takes."
    return ""
