"""Tracks the resources of each trial of a running search by id, and finds those that outlive the trial.

Resources are the trial's processes (its train workers, Train's actor for them, and all descendants), their open shared
memory entries, GPU memory according to NVML, and the placement groups of its workers. A thread records them once per
second during a trial; when the next trial measures, none of the previous trial's may be left.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import psutil
from ray import _raylet
from ray._private.state import GlobalState

from platform.cluster.leftovers import shared_memory
from platform.study.journal import Tail
from tests.whole_searches.session import Session, lives
from trainers.records.journal import End, Line, RungStart, TrialEnd, TrialStart

KINDS = ("RayTrainWorker", "SynchronizationActor")
"""Ray's names for the actors of one trial."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A resource that a trial holds on this machine or in its cluster."""

    kind: str
    id: str
    process: psutil.Process | None = dataclasses.field(default=None, compare=False)

    def is_left(self, groups: Iterable[str]) -> bool:
        """Returns whether the resource still exists; `groups` are the cluster's placement groups."""
        match self.kind:
            case "process":
                return self.process is not None and lives(self.process)
            case "shared memory":
                return Path(self.id).exists()
            case "GPU memory":
                return self.id in _gpu_pids()
            case _:
                return self.id in groups


class Accounts:
    """Follows a search from another thread; use it with `with`. `leaked` lists the resources that trials left."""

    def __init__(
        self,
        journal: Path,
        processes: Callable[[], Iterable[psutil.Process]],
        groups: Callable[[], set[str]] = set,
    ) -> None:
        """Prepares for a new session: `processes` returns the processes of the running trial, `groups` the ids of the
        cluster's placement groups.

        Lines already in the journal are skipped: they belong to earlier sessions.
        """
        self.leaked: list[str] = []
        self.held: dict[str, set[Held]] = {}
        """All resources that each trial has held."""
        self._tail = Tail(journal)
        self._tail.read()
        self._processes, self._groups = processes, groups
        self._running = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Accounts":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(1):
            self.look()

    def look(self) -> None:
        """Records the running trial's resources and, once it measures, the remaining ones of other trials.

        Recording takes time: resources seen after the end of the trial may belong to the next one and are not recorded.
        """
        self._catch_up()
        if running := self._running:
            resources = self._now()
            self._catch_up()
            if self._running == running:
                self.held[running] |= resources

    def _catch_up(self) -> None:
        for line in self._tail.read():
            self._take(line)

    def _take(self, line: Line) -> None:
        match line:
            case TrialStart():
                self._running = line.trial_id
                self.held[line.trial_id] = set()
            case RungStart():
                self._settle(but=line.trial_id)
            case TrialEnd():
                self._running = ""
            case End():  # written before its Ray ends
                self._running = ""
                self._over.set()
            case _:
                pass

    def _settle(self, but: str) -> None:
        groups = self._groups()
        for trial_id, held in self.held.items():
            if trial_id != but:
                leaked = {resource for resource in held if resource.is_left(groups)}
                self.leaked += [
                    f"{trial_id} left {resource.kind} {resource.id}" for resource in sorted(leaked, key=lambda e: e.id)
                ]
                held -= leaked  # said once

    def _now(self) -> set[Held]:
        # First, and so soon after the journal was read: a Ray that ends meanwhile takes the process that asks with it.
        groups = self._groups()
        actors = list(self._processes())
        family = set(actors)
        for actor in actors:
            with contextlib.suppress(psutil.NoSuchProcess):
                family |= set(actor.children(recursive=True))
        resources = {
            Held(kind="process", id=f"{process.pid} ({_name(process)})", process=process) for process in family
        }
        resources |= {Held(kind="shared memory", id=str(segment)) for segment in shared_memory(family)}
        resources |= {Held(kind="GPU memory", id=pid) for pid in _gpu_pids() & {str(process.pid) for process in family}}
        return resources | {Held(kind="placement group", id=group) for group in groups}


def of(session: Session, groups: Callable[[], set[str]] = set) -> Accounts:
    """Returns the accounts of a search started as a session."""
    return Accounts(session.journal, lambda: session.workers(KINDS), groups)


def groups_of(session: Session) -> Callable[[], set[str]]:
    """Returns a function that asks a session's Ray, which must accept any client, for its placement groups."""

    addresses: list[str] = []

    def groups() -> set[str]:
        if not addresses:  # else it is the same one to the session's end, and to look for it takes a while
            addresses.extend(_addresses(session))
        if not addresses:
            return set()
        # Anew each time: a client that is kept waits a minute for a Ray that has ended, and then ends its process.
        # And not by Ray's own function, which takes 127.0.0.1 for this host's other address: nobody listens there.
        create = cast(Any, _raylet).GcsClientOptions.create
        options = create(addresses[0], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        state = GlobalState()
        state._initialize_global_state(options)  # pyright: ignore[reportPrivateUsage]
        try:
            table: dict[str, Any] = state.placement_group_table()
        finally:
            state.disconnect()
        return {group_id for group_id, group in table.items() if group["state"] != "REMOVED" and not _is_tune_s(group)}

    return groups


def _is_tune_s(group: dict[str, Any]) -> bool:
    """Returns whether it is Tune's own group, which the next trial reuses; it is recognised by its requested node."""
    return any(name.startswith("node:") for bundle in group["bundles"].values() for name in bundle)


def _addresses(session: Session) -> Iterable[str]:
    for process in session.family():
        with contextlib.suppress(psutil.Error):
            yield from (word.partition("=")[2] for word in process.cmdline() if word.startswith("--gcs-address="))


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()[:2])[:60]
    return "?"


def _gpu_pids() -> set[str]:
    """Returns the processes with GPU memory, according to NVML; empty without a GPU."""
    import pynvml

    pids: set[str] = set()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return pids
    for index in range(pynvml.nvmlDeviceGetCount()):
        running: Any = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index))
        pids |= {str(process.pid) for process in running if process.usedGpuMemory}
    return pids


def gone(processes: Iterable[psutil.Process], within_s: float) -> bool:
    """Returns whether all resources end within the time."""
    until_s = time.monotonic() + within_s
    waiting = list(processes)
    while waiting := [process for process in waiting if lives(process)]:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True
