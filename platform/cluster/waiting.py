"""GPU nodes that a cluster is still starting: asks its autoscaler for them and waits.

Right after `ray up` only the head is there. What the cluster may start stands in the file that its autoscaler reads.
"""

import contextlib
import dataclasses
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from platform.common.errors import ClusterError, InputError
from platform.common.say import say
from platform.common.text import duration, plural

WAIT_S = 20 * 60.0
"""What GPU nodes may take to come: a large cloud machine boots, pulls an image and sets itself up in 10 to 15 min."""
_LOOK_S = 2.0
_REMIND_S = 60.0
_HEAD = "node:__internal_head__"
"""The resource that only a cluster's head has."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeType:
    """A node type with GPUs that a cluster's autoscaler knows."""

    name: str
    num_gpus: int
    """Of one node."""
    min_nodes: int
    """Nodes that are started without being asked for; 1 for the head's own type."""
    max_nodes: int
    accelerators: tuple[str, ...] = ()
    """Ray's resources that name the GPU, such as "accelerator_type:A100"."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """GPUs that must be there before anything runs."""

    num_gpus: int
    per_node: int
    node_types: str
    """Their names."""

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Whole nodes, as Ray's autoscaler is asked for them."""
        return [{"GPU": self.per_node}] * math.ceil(self.num_gpus / self.per_node)


def gpu_types(config: Mapping[str, Any]) -> tuple[NodeType, ...]:
    """The node types of a cluster file that have GPUs and may have nodes."""
    most = int(config.get("max_workers", 2))  # 2 is Ray's own default
    found: list[NodeType] = []
    for name, each in config.get("available_node_types", {}).items():
        resources: Mapping[str, float] = each.get("resources") or {}
        is_head = name == config.get("head_node_type")
        nodes = min(int(each.get("max_workers", 0 if is_head else most)), most) + is_head
        if resources.get("GPU", 0) >= 1 and nodes:
            found.append(
                NodeType(
                    name=name,
                    num_gpus=int(resources["GPU"]),
                    min_nodes=int(each.get("min_workers", 0)) + is_head,
                    max_nodes=nodes,
                    accelerators=tuple(sorted(key for key in resources if key.startswith("accelerator_type:"))),
                )
            )
    return tuple(found)


def awaited(types: Sequence[NodeType], wanted: int | None) -> Awaited | None:
    """What to wait for: `wanted` GPUs, else all that the cluster file promises, at least one node.

    None where no node type has GPUs.

    Raises:
        InputError: the types have unlike GPUs, or never so many.
    """
    used = [each for each in types if each.min_nodes] or list(types)
    if not used:
        return None
    names = " and ".join(each.name for each in used)
    if len({(each.num_gpus, each.accelerators) for each in used}) > 1:
        raise InputError(
            f"the node types {names} of the cluster have unlike GPUs: one study measures one type, so give all but one"
            " min_workers: 0 and max_workers: 0 in the cluster file"
        )
    per_node = used[0].num_gpus
    most = per_node * sum(each.max_nodes for each in used)
    if wanted is not None and wanted > most:
        raise InputError(
            f"{wanted} devices are asked for, the cluster file allows {most} GPUs at most: raise max_workers of {names}"
        )
    promised = per_node * max(1, sum(each.min_nodes for each in used))
    return Awaited(num_gpus=wanted or promised, per_node=per_node, node_types=names)


@contextlib.contextmanager
def for_gpus(wanted: int | None, limit_s: float) -> Generator[None]:
    """Waits until the GPUs are there, and keeps them from being taken down as idle for as long as the context lasts.

    Does nothing on a cluster without an autoscaler, or whose node types have no GPUs.

    Raises:
        InputError: see `awaited`.
        ClusterError: they did not come within `limit_s` seconds.
    """
    import ray
    from ray.autoscaler.sdk import request_resources

    target = awaited(gpu_types(_autoscaler_config(ray)), wanted)
    if target is None:
        yield
        return
    request_resources(bundles=target.bundles)
    try:
        wait(target, limit_s, live=lambda: _live_gpus(ray), told=lambda: _autoscaler_says(ray))
        yield
    finally:
        with contextlib.suppress(Exception):  # a head that is gone needs no word
            request_resources(bundles=[])


def wait(
    target: Awaited,
    limit_s: float,
    *,
    live: Callable[[], int],
    told: Callable[[], str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits for `target`; says what for when that changes, and once a minute.

    Raises:
        ClusterError: it did not come within `limit_s` seconds.
    """
    began_s, said, said_s = clock(), "", -math.inf
    while (there := live()) < target.num_gpus:
        state = told()
        words = f"{there} of {target.num_gpus} GPUs are there" + (f" ({state})" if state else "")
        waited_s = clock() - began_s
        if waited_s >= limit_s:
            raise ClusterError(
                f"{words} after {duration(waited_s)}; node type {target.node_types} has {target.per_node} a node:"
                " `ray status` and the monitor's log say what keeps them; --wait-for-gpus waits longer, --gpus takes"
                " fewer"
            )
        if words != said or waited_s - said_s >= _REMIND_S:
            nodes = plural(len(target.bundles), "node")
            say(
                f"Waiting for {nodes} of type {target.node_types}: {words}; {duration(limit_s - waited_s)} left"
                " (--wait-for-gpus)."
            )
            said, said_s = words, waited_s
        sleep(min(_LOOK_S, max(0.0, limit_s - waited_s)))
    if said:
        say(f"{plural(there, 'GPU')} came after {duration(clock() - began_s)}.")


def _live_gpus(ray: Any) -> int:
    return sum(int(each["Resources"].get("GPU", 0)) for each in ray.nodes() if each["Alive"])


def _autoscaler_config(ray: Any) -> dict[str, Any]:
    """The cluster file that the autoscaler on the head reads, empty where there is none."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from trainers import node

    head = next((each for each in ray.nodes() if each["Alive"] and _HEAD in each["Resources"]), None)
    if head is None:
        return {}
    there = NodeAffinitySchedulingStrategy(head["NodeID"], soft=False)
    asked = ray.remote(node.autoscaling).options(num_cpus=0, scheduling_strategy=there)
    return ray.get(asked.remote(ray.get_runtime_context().gcs_address), timeout=120) or {}


def _autoscaler_says(ray: Any) -> str:
    """What is starting or has failed to, in a few words; empty where the autoscaler says nothing.

    `ray up` starts Ray's second autoscaler, `ray start --autoscaling-config` its first: each tells it elsewhere.
    """
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental.internal_kv import _internal_kv_get  # pyright: ignore[reportPrivateUsage]

    starting: Counter[str] = Counter()
    failed: list[str] = []
    with contextlib.suppress(Exception):  # words for people: without them the waiting goes on
        if is_autoscaler_v2():
            from ray.autoscaler.v2.sdk import get_cluster_status

            status = get_cluster_status(ray.get_runtime_context().gcs_address)
            for launch in status.pending_launches:
                starting["launching"] += launch.count
            starting.update((each.details or "starting").lower() for each in status.pending_nodes)
            failed = [each.details or "a launch failed" for each in status.failed_launches]
        else:
            report = json.loads(_internal_kv_get("__autoscaling_status") or "{}").get("autoscaler_report", {})
            starting["launching"] = sum(report.get("pending_launches", {}).values())
            starting.update(each[2].lower() for each in report.get("pending_nodes", ()))
            failed = [f"{each[1]} failed" for each in report.get("failed_nodes", ())]
    words = [f"{count} {state}" for state, count in starting.items() if count]
    return ", ".join([*words, *(each.splitlines()[0][:160] for each in failed[-1:])])
