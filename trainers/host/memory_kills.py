"""Finds processes killed because their host ran out of memory, by Ray's memory monitor or by the kernel.

Errors of a trial's other processes are then no cause: a peer sees a closed connection, often before Ray has noticed the
death.
"""

import dataclasses
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, cast

import psutil
import ray
from ray._private.state import state
from ray.core.generated import common_pb2, gcs_pb2

from trainers.host import node
from trainers.spec.codec import printable

LATE_S = 5.0
"""Seconds that Ray may take to record a death that a peer has already noticed."""
_POLL_S = 0.2
BACK_S = 60.0
"""Seconds that `wait_for_memory` waits at most."""
_FREE_SHARE = 0.1
"""Share of a host's memory that is available again once `wait_for_memory` returns early: Ray kills above 95 %."""
_LARGEST = re.compile(r"^(\d+)\t([\d.]+)\t(.*)$", re.MULTILINE)
"""Matches a row of the monitor's table of a host's largest processes: id, GB, command."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Kill:
    """The report of Ray's memory monitor on a process that it killed."""

    node_id: str
    sentence: str
    largest: Sequence[tuple[int, float, str]]
    """The host's largest processes at that time: id, GB, command."""


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
        if new := self._new():
            return new[0].sentence
        if self._sees_kernel and (kills := node.oom_kills() - self._by_kernel) > 0:
            return f"the kernel's count of such kills grew by {kills}"
        return ""

    def _new(self) -> list[_Kill]:
        return [kill for worker, kill in _by_monitor(self._nodes).items() if worker not in self._by_monitor]

    def neighbour(self, *, has_commands: bool = False) -> str:
        """Returns a clause that names the process outside this job that held more of a host's memory than all of the
        job's own among the host's largest, when the monitor killed; "" if there was none, or the kernel killed. Of a
        job that `has_commands` a process which has ended, or is on another node, may have been the user's.
        """
        for kill in self._new():
            if clause := _neighbour(kill, has_commands=has_commands):
                return clause
        return ""


def wait_for_memory(most_s: float = BACK_S) -> None:
    """Waits until a tenth of this host's memory is available, `most_s` seconds at most."""
    until_s, total = time.monotonic() + most_s, node.memory_bytes()
    while time.monotonic() < until_s and (node.available_memory_bytes() or total) < _FREE_SHARE * total:
        time.sleep(_POLL_S)


def _neighbour(kill: _Kill, *, has_commands: bool) -> str:
    is_here = kill.node_id == ray.get_runtime_context().get_node_id()
    own = _pids(kill.node_id) | ({os.getpid()} if is_here else set())
    own_gb, others = 0.0, list[tuple[float, int, str]]()
    for pid, gb, command in kill.largest:
        if _is_own(pid, own, is_here=is_here, otherwise=has_commands):
            own_gb += gb
        else:
            others.append((gb, pid, command))
    gb, pid, command = max(others, default=(0.0, 0, ""))
    if gb <= own_gb:
        return ""
    name = PurePath(command.split(maxsplit=1)[0]).name if command.strip() else "unnamed"  # its arguments may be secret
    return f"process {pid} ({printable(name)[:60]}), which is none of this run's, held {gb:g} GB there"


def _is_own(pid: int, own: Collection[int], *, is_here: bool, otherwise: bool) -> bool:
    """Returns whether a process is one of `own`, or comes from one; `otherwise` if its parents are unknown."""
    if pid in own:
        return True
    if not is_here:
        return otherwise
    try:
        return any(parent.pid in own for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return otherwise


def _pids(node_id: str) -> set[int]:
    """Returns the ids of this job's processes on a node, also of those that ended."""
    return {
        worker.pid
        for worker in _workers()
        if worker.job_id == _job() and worker.worker_address.node_id.hex() == node_id
    }


def _by_monitor(nodes: Collection[str]) -> Mapping[bytes, _Kill]:
    """Returns the reports of Ray's memory monitor on killed processes of this job, by worker id; `nodes` are Ray's node
    ids, empty for all.
    """
    killed: int = cast(Any, common_pb2).WorkerExitType.Value("NODE_OUT_OF_MEMORY")
    job = _job()
    return {
        worker.worker_address.worker_id: _Kill(
            node_id=worker.worker_address.node_id.hex(),
            sentence=_sentence(worker),
            largest=[(int(pid), float(gb), command) for pid, gb, command in _LARGEST.findall(worker.exit_detail)],
        )
        for worker in _workers()
        if not worker.is_alive and worker.exit_type == killed and worker.job_id == job
        if not nodes or worker.worker_address.node_id.hex() in nodes
    }


def _job() -> bytes:
    return bytes.fromhex(ray.get_runtime_context().get_job_id())


def _workers() -> list[Any]:
    # Private API of Ray: the table of workers that its dashboard shows.
    table: list[bytes] = state._connect_and_get_accessor().get_worker_table()  # pyright: ignore[reportPrivateUsage]
    return [cast(Any, gcs_pb2).WorkerTableData.FromString(row) for row in table]


def _sentence(worker: Any) -> str:
    detail = re.split(r"(?<=[a-z)])\. |\n", worker.exit_detail.strip())[0]
    return f"process {worker.pid} on node {worker.worker_address.ip_address}: {detail}"[:300]
