"""Knows which nodes a cluster will have: an autoscaler starts them, or a scheduler or a person states their number.

`ray up` leaves a file that its autoscaler reads. SLURM and Kubernetes start nodes themselves, so the files in `deploy/`
state their number in `LAYOUT_SEARCH_NODES`. A cluster with neither has a fixed set of nodes.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from platform.common.errors import InputError
from platform.common.text import plural

STATED = "LAYOUT_SEARCH_NODES"
"""Environment variable of the driver with the cluster's nodes: "4", or nodes x GPUs of each, "4x8"."""
_STATED = re.compile(r"([1-9]\d{0,4})(?:x([1-9]\d{0,2}))?")
_HEAD = "node:__internal_head__"
"""The resource that only a cluster's head has."""
_FREE = ("local", "readonly", "fake_multinode", "fake_multinode_docker", "")
"""Ray's node providers whose nodes cost nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """GPUs (or nodes, if their GPUs are unknown) that must be there before anything runs."""

    num_nodes: int
    gpus_per_node: int = 0
    """GPUs of each node; 0 if only nodes are counted."""
    num_gpus: int = 0
    description: str
    """Text on the nodes, such as "of type p4d"."""
    look: str
    """Text on where a user can see why they do not start."""

    @property
    def count(self) -> int:
        """Number of GPUs that must be there, or of nodes if their GPUs are unknown."""
        return self.num_gpus or self.num_nodes

    @property
    def unit(self) -> str:
        return "GPU" if self.num_gpus else "node"

    @property
    def bundles(self) -> list[dict[str, float]]:
        """One resource request a node for Ray's autoscaler; empty if nodes start without a request."""
        return [{"GPU": self.gpus_per_node}] * self.num_nodes if self.num_gpus else []


class NodeProvider(Protocol):
    """Knows which nodes a cluster will have, their state and their cost."""

    def awaited(self, num_devices: int | None) -> Awaited | None:
        """Returns the nodes to wait for: enough for `num_devices` (None: all that can start); None if no more are
        expected.

        Raises:
            InputError: the nodes have unlike GPUs, or too few are possible.
        """
        ...

    def state(self) -> str:
        """Returns text on nodes that are starting or failed to start; "" if unknown."""
        ...

    def bill(self) -> str:
        """Returns a sentence on what keeps costing money after a search; "" if nothing does."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeType:
    """A node type with GPUs in a cluster's autoscaler file."""

    name: str
    num_gpus: int
    min_nodes: int
    """Number of nodes that start without a request; 1 for the head's own type."""
    max_nodes: int
    accelerators: tuple[str, ...] = ()
    """Ray resources that name the GPU, such as "accelerator_type:A100"."""


def gpu_types(config: Mapping[str, Any]) -> tuple[NodeType, ...]:
    """Returns the node types of a cluster file that have GPUs and at least one possible node."""
    max_workers = int(config.get("max_workers", 2))  # 2 is Ray's own default
    types: list[NodeType] = []
    for name, entry in config.get("available_node_types", {}).items():
        resources: Mapping[str, float] = entry.get("resources") or {}
        is_head = name == config.get("head_node_type")
        nodes = min(int(entry.get("max_workers", 0 if is_head else max_workers)), max_workers) + is_head
        if resources.get("GPU", 0) >= 1 and nodes:
            types.append(
                NodeType(
                    name=name,
                    num_gpus=int(resources["GPU"]),
                    min_nodes=int(entry.get("min_workers", 0)) + is_head,
                    max_nodes=nodes,
                    accelerators=tuple(sorted(key for key in resources if key.startswith("accelerator_type:"))),
                )
            )
    return tuple(types)


class Autoscaler:
    """The autoscaler that `ray up` starts on the head, described by its cluster file."""

    def __init__(self, config: Mapping[str, Any], ray: Any = None) -> None:
        self._config = config
        self._ray = ray

    def awaited(self, num_devices: int | None) -> Awaited | None:
        """Returns the nodes for `num_devices`, or all that the file allows; none starts before a search requests it."""
        types = gpu_types(self._config)
        used = [type_ for type_ in types if type_.min_nodes] or list(types)
        if not used:
            return self._hosts()
        names = " and ".join(node_type.name for node_type in used)
        if len({(node_type.num_gpus, node_type.accelerators) for node_type in used}) > 1:
            raise InputError(
                f"the node types {names} of the cluster have unlike GPUs: one study measures one type, so give all but"
                " one min_workers: 0 and max_workers: 0 in the cluster file"
            )
        per_node = used[0].num_gpus
        max_gpus = per_node * sum(node_type.max_nodes for node_type in used)
        if num_devices is not None and num_devices > max_gpus:
            raise InputError(
                f"{num_devices} devices are asked for, the cluster file allows {max_gpus} GPUs at most: raise"
                f" max_workers of {names}"
            )
        num_gpus = num_devices or max_gpus
        price = self._price(used[0].name, " and ") if len(used) == 1 else ""
        return Awaited(
            num_nodes=math.ceil(num_gpus / per_node),
            gpus_per_node=per_node,
            num_gpus=num_gpus,
            description=f"of type {names}, {plural(per_node, 'GPU')}{price} each",
            look="`ray status` and the monitor's log",
        )

    def _hosts(self) -> Awaited | None:
        """Returns the hosts listed in a file with Ray's local provider; their GPUs are unknown until they join."""
        provider: Mapping[str, Any] = self._config.get("provider") or {}
        if provider.get("type") != "local":
            return None
        num_workers = sum(int(entry.get("min_workers", 0)) for entry in self._config["available_node_types"].values())
        return Awaited(num_nodes=num_workers + 1, description="of the cluster file's list", look="the monitor's log")

    def state(self) -> str:
        """Returns the state by Ray's autoscaler: version 2 after `ray up`, else version 1 (--autoscaling-config)."""
        return _autoscaler_state(self._ray)

    def bill(self) -> str:
        """Returns what a cloud keeps billing after a search; "" for hosts without a bill."""
        provider: Mapping[str, Any] = self._config.get("provider") or {}
        if provider.get("type", "") in _FREE:
            return ""
        idle_min = self._config.get("idle_timeout_minutes", 5)
        head = self._price(self._config.get("head_node_type", ""), " ")
        return (
            f"Idle GPU nodes are ended after {idle_min} min; the head bills{head} until `ray down`, which ends"
            " everything."
        )

    def _price(self, node_type: str, before: str) -> str:
        """Returns a node's price, preceded by `before`, if the file's metadata has it in `usd_per_node_h`; else ""."""
        metadata: Any = self._config.get("metadata")
        prices: Any = metadata.get("usd_per_node_h") if isinstance(metadata, Mapping) else None
        price: Any = prices.get(node_type) if isinstance(prices, Mapping) else None
        return f"{before}{price:.2f} USD an hour" if isinstance(price, int | float) else ""


class Stated:
    """Nodes that SLURM, Kubernetes or a person starts, in the number stated by LAYOUT_SEARCH_NODES."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Reads the number of nodes and, if stated, of GPUs of each.

        Raises:
            InputError: the variable has another form.
        """
        text = environment[STATED]
        match = _STATED.fullmatch(text.strip())
        if match is None:
            raise InputError(f"{STATED} must be nodes, as 4, or nodes x GPUs of each, as 4x8, got {text!r}")
        self._num_nodes, self._gpus_per_node = int(match[1]), int(match[2] or 0)
        self._description, self._look = _starter(environment)

    def awaited(self, num_devices: int | None) -> Awaited | None:
        """Returns the nodes for `num_devices` if the GPUs of a node are stated, else all nodes."""
        num_nodes, per_node = self._num_nodes, self._gpus_per_node
        if per_node and num_devices is not None:
            if num_devices > num_nodes * per_node:
                raise InputError(
                    f"{num_devices} devices are asked for, {STATED}={num_nodes}x{per_node} states"
                    f" {num_nodes * per_node} GPUs: give more nodes, or a smaller --gpus"
                )
            num_nodes = math.ceil(num_devices / per_node)
        return Awaited(
            num_nodes=num_nodes,
            gpus_per_node=per_node,
            num_gpus=min(num_devices or num_nodes * per_node, num_nodes * per_node),
            description=self._description,
            look=self._look,
        )

    def state(self) -> str:
        """Returns "": SLURM or Kubernetes reports the state of its nodes itself."""
        return ""

    def bill(self) -> str:
        """Returns "": SLURM or Kubernetes also ends the nodes."""
        return ""


class Present:
    """A cluster whose nodes have all joined."""

    def awaited(self, num_devices: int | None) -> Awaited | None:
        return None

    def state(self) -> str:
        return ""

    def bill(self) -> str:
        return ""


def provider_of(ray: Any, environment: Mapping[str, str] = os.environ) -> NodeProvider:
    """Returns the provider of the connected cluster's nodes; a stated number overrides an autoscaler's file.

    Raises:
        InputError: LAYOUT_SEARCH_NODES is not a number of nodes.
    """
    if environment.get(STATED, "").strip():
        return Stated(environment)
    config = _autoscaler_config(ray)
    return Autoscaler(config, ray) if config else Present()


def _starter(environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns text on the stated nodes, and on where to look if they do not start."""
    if job := environment.get("SLURM_JOB_ID"):
        return f"of SLURM job {job}", f"`scontrol show job {job}` and the job's output"
    if cluster := environment.get("RAY_CLUSTER_NAME"):  # KubeRay's operator sets it
        return f"of the RayCluster {cluster}", f"`kubectl get pods -l ray.io/cluster={cluster}`"
    return f"that {STATED} states", "each node's `ray start`"


def _autoscaler_config(ray: Any) -> Mapping[str, Any]:
    """Returns the cluster file read by the autoscaler on the head; empty without one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from trainers.host import node

    nodes: Sequence[Mapping[str, Any]] = ray.nodes()
    head = next((entry for entry in nodes if entry["Alive"] and _HEAD in entry["Resources"]), None)
    if head is None:
        return {}
    on_head = NodeAffinitySchedulingStrategy(head["NodeID"], soft=False)
    remote_config = ray.remote(node.autoscaling).options(num_cpus=0, scheduling_strategy=on_head)
    return ray.get(remote_config.remote(ray.get_runtime_context().gcs_address), timeout=120) or {}


def _autoscaler_state(ray: Any) -> str:
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental.internal_kv import _internal_kv_get  # pyright: ignore[reportPrivateUsage]

    starting: Counter[str] = Counter()
    failed: list[str] = []
    with contextlib.suppress(Exception):  # the text is only informative, so an error must not end the waiting
        if is_autoscaler_v2():
            from ray.autoscaler.v2.sdk import get_cluster_status

            status = get_cluster_status(ray.get_runtime_context().gcs_address)
            for launch in status.pending_launches:
                starting["launching"] += launch.count
            starting.update((pending_node.details or "starting").lower() for pending_node in status.pending_nodes)
            failed = [failed_launch.details or "a launch failed" for failed_launch in status.failed_launches]
        else:
            report = json.loads(_internal_kv_get("__autoscaling_status") or "{}").get("autoscaler_report", {})
            starting["launching"] = sum(report.get("pending_launches", {}).values())
            starting.update(pending[2].lower() for pending in report.get("pending_nodes", ()))
            failed = [f"{failure[1]} failed" for failure in report.get("failed_nodes", ())]
    words = [f"{count} {state}" for state, count in starting.items() if count]
    return ", ".join([*words, *(failure.splitlines()[0][:160] for failure in failed[-1:])])
