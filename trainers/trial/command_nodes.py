"""The nodes of a trial with a user's command: a Ray task on the first node follows a process tree on each node."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainers.commands.ending import node_of_cause
from trainers.commands.processes import free_port
from trainers.commands.run import Starter
from trainers.commands.steps import Step, StepLineError
from trainers.commands.trees import LocalTree
from trainers.records.job import Job
from trainers.spec.codec import from_json, to_json
from trainers.spec.workload import Workload

LOOK_S = 0.2
"""Seconds between two looks at the trees of other nodes."""
_ANSWER_S = 120.0
"""Seconds within which a node must start, end or report its tree."""


def on_nodes(function: Callable[..., Any], job: Job) -> Any:
    """Runs `function(job as JSON, CommandNodes)` in a task on the first of the job's nodes and returns its result;
    without the second argument on a single node. Raises Ray's errors.
    """
    devices = job.cluster.devices_per_node
    gpus = devices if job.cluster.device_kind == "cuda" else 0
    cpus = job.cpus_per_worker * devices
    selector = {"ray.io/node-id": f"in({','.join(job.nodes)})"} if job.nodes else None
    task: Any = ray.remote(function)
    if job.cluster.num_nodes == 1:
        return ray.get(
            task.options(
                num_cpus=cpus,
                num_gpus=gpus,
                max_retries=0,
                scheduling_strategy="DEFAULT",  # not in Tune's placement group, which reserves less
                label_selector=selector,
            ).remote(to_json(job))
        )
    count = job.cluster.num_nodes
    bundle = {"CPU": cpus, **({"GPU": float(gpus)} if gpus else {})}
    # Ray takes one selector a bundle, and refuses an empty list of them.
    selectors: dict[str, Any] = {"bundle_label_selector": [selector] * count} if selector else {}
    group = placement_group([bundle] * count, strategy="STRICT_SPREAD", **selectors)
    try:
        first = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": first}
        nodes = CommandNodes(group=group, count=count, num_cpus=cpus, num_gpus=gpus)
        return ray.get(task.options(**options).remote(to_json(job), nodes))
    finally:
        remove_placement_group(group)  # also ends processes that still run on its nodes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CommandNodes:
    """The nodes on which a job's command runs, for the task on the first of them."""

    group: PlacementGroup
    count: int
    num_cpus: float
    num_gpus: int

    def starter(self, job: Job) -> Starter:
        """Returns a function that starts the job's command on all of the nodes."""
        others = [self._actor(bundle) for bundle in range(1, self.count)]
        return lambda workload, values: TreesOnNodes(workload, values, others, job, gpus=self.num_gpus)

    def addresses(self) -> dict[str, str]:
        """Returns the nodes' addresses by Ray's ids, the first node's first."""
        bundles = ray.util.placement_group_table(self.group)["bundles_to_node_id"]
        nodes: list[dict[str, Any]] = ray.nodes()
        address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
        return {bundles[number]: address_of[bundles[number]] for number in range(self.count)}

    def _actor(self, bundle: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)
        options = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "scheduling_strategy": strategy}
        return ray.remote(NodeTree).options(**options).remote()


class NodeTree:
    """The process tree of a further node, in an actor there."""

    def __init__(self) -> None:
        self._tree: LocalTree | None = None

    def start(
        self,
        workload: dict[str, Any],
        values: Mapping[str, object],
        gpus: int,
        environment: Mapping[str, str | None],
        place: Mapping[str, object],
    ) -> str:
        """Starts the command and returns this node's address. Raises `OSError` if it cannot be started."""
        self._tree = LocalTree(from_json(Workload, workload), values, gpus=gpus, environment=environment, place=place)
        return ray.util.get_node_ip_address()

    def look(self) -> dict[str, Any]:
        """Returns the tree's exit `code`, the `gib` that it holds, and its new `steps`, or the error (`wrong`) in a
        step's line.
        """
        assert self._tree is not None
        code = self._tree.exit_code()  # read before the last look at its lines
        try:
            steps = to_json(self._tree.new_steps())
        except StepLineError as error:
            return {"code": code, "gib": None, "steps": [], "wrong": str(error)}
        return {"code": code, "gib": self._tree.memory_gib(), "steps": steps, "wrong": ""}

    def text(self) -> str:
        return "" if self._tree is None else self._tree.text()

    def close(self) -> None:
        if self._tree is not None:
            self._tree.close()
            self._tree = None


class TreesOnNodes:
    """A command on several nodes as one `Tree`: it ends with the first failure, or when all trees have ended."""

    def __init__(
        self, workload: Workload, values: Mapping[str, object], others: list[Any], job: Job, *, gpus: int
    ) -> None:
        """Starts a tree on each node, the first one on this node.

        Raises:
            OSError: a tree cannot be started.
        """
        self._others, self._gpus = others, gpus
        self._addresses = [ray.util.get_node_ip_address()]
        meeting = {"head": self._addresses[0], "port": free_port()}
        arguments = (workload, dict(values), gpus, dict(job.environment))
        self._first = LocalTree(
            workload, values, gpus=gpus, environment=job.environment, place={**meeting, "node_rank": 0}
        )
        self._codes: list[int | None] = [None] * (1 + len(others))
        self._gib: list[float | None] = [None] * len(self._codes)
        self._failed: list[int] = []
        """Numbers of the nodes whose trees failed, in the order of detection."""
        self._steps: list[Step] = []
        self._wrong, self._looked_s = "", 0.0
        self._looks: list[Any] = [None] * len(others)
        try:
            self._addresses += ray.get(
                [
                    actor.start.remote(to_json(workload), *arguments[1:], {**meeting, "node_rank": number})
                    for number, actor in enumerate(others, start=1)
                ],
                timeout=_ANSWER_S,
            )
        except BaseException:
            self.close()
            raise

    def exit_code(self) -> int | None:
        self._see(0, self._first.exit_code())
        self._look()
        if self._failed:
            return self._codes[self._failed[0]]
        return 0 if all(code == 0 for code in self._codes) else None

    def _look(self) -> None:
        """Reads the answers of the other nodes, and asks them again."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        for number, actor in enumerate(self._others, start=1):
            look = self._looks[number - 1]
            if look is not None and ray.wait([look], timeout=0)[0]:
                answer: dict[str, Any] = ray.get(look)
                self._gib[number] = answer["gib"]
                self._wrong = self._wrong or answer["wrong"]
                # Clocks of other nodes are not comparable, so only the distances of a node's steps count.
                steps = [from_json(Step, step) for step in answer["steps"]]
                self._steps += [
                    dataclasses.replace(step, at_s=self._looked_s - steps[-1].at_s + step.at_s) for step in steps
                ]
                self._see(number, answer["code"])
                look = None
            if look is None and self._codes[number] is None:
                look = actor.look.remote()
            self._looks[number - 1] = look

    def _see(self, number: int, code: int | None) -> None:
        if self._codes[number] is None and code is not None:
            self._codes[number] = code
            if code:
                self._failed.append(number)

    def memory_gib(self) -> float | None:
        self._gib[0] = self._first.memory_gib()
        held = [gib for gib in self._gib if gib is not None]
        return (max(held) if self._gpus else sum(held)) if held else None

    def new_steps(self) -> list[Step]:
        if self._wrong:
            raise StepLineError(self._wrong)
        steps, self._steps = self._steps, []
        return [*self._first.new_steps(), *steps]

    def text(self) -> str:
        """Returns the output of the node that says why the command ended, with the node's name."""
        texts = [self._first.text(), *ray.get([actor.text.remote() for actor in self._others], timeout=_ANSWER_S)]
        number = node_of_cause(self._codes, self._failed, texts)
        return f"[node {number}, {self._addresses[number]}]\n{texts[number]}"

    def close(self) -> None:
        self._first.close()
        ray.wait([actor.close.remote() for actor in self._others], num_returns=len(self._others), timeout=_ANSWER_S)
