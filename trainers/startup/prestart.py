"""Starts the next trial's worker processes while a trial runs: each worker asks its node for its successor. The driver
asks for the processes of a session's first trial.

A new process imports torch, Ray Train and transformers first, which takes 8 to 14 s of a trial on H200 hosts
(docs/measurements.md). Ray gives an unused process to any actor of the same job and runtime environment, so the next
trial's workers find theirs ready; otherwise they start in the usual way. A waiting process holds 0.8 GiB of host
memory. Ray keeps it until it is used or the job ends, at least for `KEEP_S`.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Mapping
from typing import Any, cast

import ray

from trainers import startup
from trainers.spec import engines

IS_WORKER = "LAYOUT_SEARCH_WORKER"
"""Environment variable of train workers only; these processes import a worker's modules."""
IS_TUNE = "PL_DISABLE_FORK"
"""Environment variable that Tune sets for its part of a trial, and so for the trial's workers."""
KEEP_S = 900
"""Seconds for which Ray keeps a waiting successor; a longer trial finds none."""
SPARE_CORES = 2
"""Spare cores per worker that a node must have, so that starting processes do not slow the trial."""
_ANSWER_S = 2.0


def preload() -> None:
    """Imports in advance the modules of a worker, or of Tune's part of a trial. Ray runs it in every new process before
    any work, and only afterwards tells the process its share of the cores (see `keep_to_share`).

    No import may initialise CUDA, because such a process would not see the devices assigned to it later. Checked with a
    replacement `libcuda.so.1` that notes each `cuInit`: torch 2.11 for CUDA 13 with transformers 5.17 never calls it.
    The import of DeepSpeed 0.19.8 does, so trials of that engine import it themselves, which takes a second.
    """
    if not startup.is_on():
        return
    with contextlib.suppress(Exception):  # the trial's own import raises the error again and reports it
        if IS_WORKER in os.environ:
            importlib.import_module("trainers.trial.worker")
            create = importlib.import_module("trainers.engines.create")
            for rules in engines.registered():
                if rules.is_preloaded:
                    create.engine_class(rules.name)
            importlib.import_module("trainers.models.model").load_code()
        elif IS_TUNE in os.environ:
            importlib.import_module("trainers.trial.trainable")


def keep_to_share() -> None:
    """Sets torch's number of threads to OMP_NUM_THREADS, which Ray or the user has set meanwhile."""
    import torch

    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(max(1, int(threads)))


def have_room(num_cpus: float, num_workers: int, cpus_per_worker: float) -> bool:
    """Returns whether a node with this many cores has enough to spare for the successors of its `num_workers`. A worker
    that drives a GPU uses two cores, whatever its share is.
    """
    return num_cpus >= num_workers * (min(2.0, cpus_per_worker) + SPARE_CORES)


def ask(num_workers: int, cpus_per_worker: float, *, shares_node: bool = False) -> None:
    """Asks this process's node for another process like it, if the node has room for the successors of all its
    `num_workers`; of as many as the node holds if the trial `shares_node`. Failures are ignored.
    """
    if not startup.is_on():
        return
    with contextlib.suppress(Exception):
        context = ray.get_runtime_context()
        nodes: list[dict[str, Any]] = ray.nodes()
        node = next(ray_node for ray_node in nodes if ray_node["NodeID"] == context.get_node_id())
        num_cpus = node["Resources"].get("CPU", 0.0)
        if shares_node:
            num_workers = int(node["Resources"].get("GPU", 0) or num_cpus / cpus_per_worker)
        if have_room(num_cpus, num_workers, cpus_per_worker):
            _start(node, 1, context.get_runtime_env_string())


def ask_first(workers_of: Mapping[str, int], cpus_per_worker: float, num_trials: int = 1) -> None:
    """Asks for the processes of a session's first trials: on each node (by Ray id) for that many workers, and on the
    driver's node for Tune's part of each trial. They import modules while the search prepares. Nodes without room are
    skipped; failures are ignored.
    """
    if not startup.is_on():
        return
    with contextlib.suppress(Exception):
        driver = ray.get_runtime_context()
        environment = json.loads(driver.get_runtime_env_string())
        environment["env_vars"][IS_TUNE] = "1"
        of_tune = _text(environment)
        environment["env_vars"][IS_WORKER] = "1"
        for node in cast(list[dict[str, Any]], ray.nodes()):
            num_workers = workers_of.get(node["NodeID"], 0)
            if have_room(node["Resources"].get("CPU", 0.0), num_workers, cpus_per_worker):
                if num_workers:
                    _start(node, num_workers, _text(environment))
                if node["NodeID"] == driver.get_node_id():
                    _start(node, num_trials, of_tune)


def _text(environment: Mapping[str, Any]) -> str:
    """Returns an environment as text in the form of Ray's actors, because Ray compares environments by text."""
    return json.dumps(environment, sort_keys=True, separators=(",", ":"))


def _start(node: Mapping[str, Any], num_workers: int, environment: str) -> None:
    # Private API of Ray: the call with which it starts processes ahead of tasks.
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.ray_constants import GLOBAL_GRPC_OPTIONS
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    common, messages = cast(Any, common_pb2), cast(Any, node_manager_pb2)
    request = messages.PrestartWorkersRequest(
        language=common.Language.PYTHON,
        job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
        keep_alive_duration_secs=KEEP_S,
        num_workers=num_workers,
    )
    request.runtime_env_info.serialized_runtime_env = environment
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    with cast(Any, init_grpc_channel(address, GLOBAL_GRPC_OPTIONS)) as channel:
        node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=_ANSWER_S)
