"""Finds processes killed because their host ran out of memory, by Ray's memory monitor or by the kernel.

Errors of a trial's other processes are then no cause: a peer sees a closed connection, often before Ray has noticed the
death.
"""

import re
import time
from collections.abc import Collection
from typing import Any, cast

import ray
from ray._private.state import state
from ray.core.generated import common_pb2, gcs_pb2

from trainers.host import node

LATE_S = 5.0
"""Seconds that Ray may take to record a death that a peer has already noticed."""
_POLL_S = 0.2


class MemoryKills:
    """Memory kills since its creation: of this Ray job's processes on some nodes, and by the kernel on this node."""

    def __init__(self, nodes: Collection[str] = ()) -> None:
        """Selects `nodes`, by Ray's node ids; empty for all nodes."""
        self._nodes = frozenset(nodes)
        self._sees_kernel = not nodes or ray.get_runtime_context().get_node_id() in self._nodes
        self._by_kernel = node.oom_kills()
        self._by_monitor = set(_by_monitor(self._nodes))

    def since(self, wait_s: float = LATE_S) -> str:
        """Returns a clause with the killer and the killed process, waiting up to `wait_s` seconds for it; "" if nothing
        was killed.
        """
        until_s = time.monotonic() + wait_s
        while not (clause := self._clause()) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return clause

    def _clause(self) -> str:
        if new := [detail for worker, detail in _by_monitor(self._nodes).items() if worker not in self._by_monitor]:
            return new[0]
        if self._sees_kernel and (kills := node.oom_kills() - self._by_kernel) > 0:
            return f"the kernel's count of such kills grew by {kills}"
        return ""


def _by_monitor(nodes: Collection[str]) -> dict[bytes, str]:
    """Returns the reports of Ray's memory monitor on killed processes of this job, by worker id; `nodes` are Ray's node
    ids, empty for all.
    """
    # Private API of Ray: the table of workers that its dashboard shows.
    messages, common = cast(Any, gcs_pb2), cast(Any, common_pb2)
    killed: int = common.WorkerExitType.Value("NODE_OUT_OF_MEMORY")
    job = bytes.fromhex(ray.get_runtime_context().get_job_id())
    table: list[bytes] = state._connect_and_get_accessor().get_worker_table()  # pyright: ignore[reportPrivateUsage]
    workers = [messages.WorkerTableData.FromString(row) for row in table]
    return {
        worker.worker_address.worker_id: _sentence(worker)
        for worker in workers
        if not worker.is_alive and worker.exit_type == killed and worker.job_id == job
        if not nodes or worker.worker_address.node_id.hex() in nodes
    }


def _sentence(worker: Any) -> str:
    detail = re.split(r"(?<=[a-z)])\. |\n", worker.exit_detail.strip())[0]
    return f"process {worker.pid} on node {worker.worker_address.ip_address}: {detail}"[:300]
