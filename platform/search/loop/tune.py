"""The only module that talks to Ray Tune: turns the loop's jobs into Tune trials, and Tune's ends into the loop's."""

import contextlib
import io
import logging
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import ray
import ray.tune
from ray._raylet import PlacementGroupID
from ray.tune.search import Searcher as TuneSearcher
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from platform.cluster.leftovers import Note
from platform.common.errors import ClusterError
from platform.common.text import plural
from platform.search.loop.loop import SearchLoop
from trainers.host.memory_kills import MemoryKills
from trainers.host.node import error_of
from trainers.spec.codec import to_json
from trainers.trial import recorder as recorders
from trainers.trial.recorder import MAX_RESTARTS, Recorder, RecorderError
from trainers.trial.trainable import host_memory, run_trial, write


@contextlib.contextmanager
def recorder(journal: Path, state: Path) -> Generator[str]:
    """Runs the study's recorder actor on this node and yields its name.

    Ray restarts it when it dies. It keeps in the file `state` what is not in the journal.
    """
    name = f"recorder-{uuid.uuid4().hex[:8]}"
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"name": name, "num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": this_node}
    options |= {"max_restarts": MAX_RESTARTS, "max_task_retries": -1}
    actor = cast(Any, ray.remote(Recorder).options(**options).remote(str(journal), str(state)))
    ray.get(actor.ready.remote(), timeout=120)
    try:
        yield name
    finally:
        ray.kill(actor)


def note_of(*, is_local: bool, scratch: Path) -> Note:
    """Returns a note of what this driver runs on the cluster, so that a later driver can remove it if this one is
    killed.
    """
    context = ray.get_runtime_context()
    return Note(
        ray_session=cast(Any, ray)._private.worker.global_worker.node.get_session_dir_path() if is_local else "",
        cluster=context.get_session_name(),
        job_id=context.get_job_id(),
        scratch=str(scratch),
    )


def sweep(note: Note) -> str:
    """Removes what a killed driver left on this cluster; returns a sentence on it, "" for nothing.

    Ray ends a dead driver's actors by itself, and should end its placement groups too.
    """
    if note.cluster != ray.get_runtime_context().get_session_name():
        return ""
    removed = _remove_groups(note.job_id, keep_tune=False)
    return (
        f"Removed from the cluster what the killed search left: {plural(removed, 'placement group')}."
        if removed
        else ""
    )


def run(loop: SearchLoop, *, driver_ip: str, scratch: Path) -> None:
    """Runs the loop's jobs one after another until there are no more; Tune keeps its own files in `scratch`.

    Raises:
        KeyboardInterrupt: the user asked to stop; workers are taken down with the connection to Ray.
        ClusterError: the journal could not be written.
    """
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)
    # A head that was started with no CPUs, as large clusters have it, could never place a tenth of one.
    cpu = 0.1 if _cpus_of(driver_ip) >= 1 else 0.0
    trainable = ray.tune.with_resources(run_trial, {"CPU": cpu, f"node:{driver_ip}": 0.001})
    tuner = ray.tune.Tuner(
        trainable,
        param_space={"storage": f"{scratch}/train"},
        tune_config=ray.tune.TuneConfig(
            search_alg=(bridge := _Bridge(loop)),
            num_samples=-1,
            max_concurrent_trials=1,
            reuse_actors=True,  # the Tune side of a trial takes 5 s to import Train: once is enough
        ),
        run_config=ray.tune.RunConfig(
            name="tune",
            storage_path=str(scratch),
            verbose=0,
            failure_config=ray.tune.FailureConfig(max_failures=0, fail_fast=False),
        ),
    )
    with contextlib.redirect_stdout(io.StringIO()):  # standard output belongs to the table and to --json
        tuner.fit()
    if bridge.fault is not None:
        raise bridge.fault


def _cpus_of(ip: str) -> float:
    nodes: list[dict[str, Any]] = ray.nodes()
    return max((node["Resources"].get("CPU", 0.0) for node in nodes if f"node:{ip}" in node["Resources"]), default=0.0)


class _Bridge(TuneSearcher):
    """The loop as a Tune searcher and scheduler. The journal holds all state, so nothing is saved in Tune's files."""

    def __init__(self, loop: SearchLoop) -> None:
        super().__init__(metric="wall_s", mode="min")
        self._loop = loop
        self.fault: ClusterError | None = None
        """The error that ended the search: after a failed trial Tune raises an error of its own instead."""
        self._kills: MemoryKills | None = None
        """Memory kills since the running trial began."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    # Ray's annotation omits FINISHED, a str.
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.fault is not None:
            return TuneSearcher.FINISHED
        if self._loop.running is not None:
            return None
        job = self._loop.next_job()
        self._kills = MemoryKills()
        return TuneSearcher.FINISHED if job is None else {"job": to_json(job)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        reported = result or {}
        _remove_groups(ray.get_runtime_context().get_job_id())
        is_silent = error or "state" not in reported
        state = "failed" if is_silent else reported["state"]
        status: dict[str, Any] | None = None
        fault = ""
        try:
            if is_silent:
                self._look_for_memory_kill()
            if state == "failed":
                status = self._status()
        except RecorderError as recorder_error:
            fault = str(recorder_error)
        nodes, lost_nodes = _nodes(status["nodes"] if status else []) if state == "failed" else ([], [])
        try:
            self._loop.on_trial_end(
                state=state,
                reason=reported.get("reason", "") or fault,
                started=state != "failed" or status is not None,
                rank=reported.get("rank"),
                nodes=nodes,
                lost_nodes=lost_nodes,
            )
        except ClusterError as unwritten:
            self.fault = unwritten
        if fault:
            self._loop.fault = fault

    def _look_for_memory_kill(self) -> None:
        """Records the running trial as out of memory where the system killed its process on this node for lack of
        memory.

        No process of the trial is left that could report it.
        """
        job = self._loop.running
        assert job is not None and self._kills is not None
        if killed := self._kills.since():
            write(job, recorders.find(job.recorder), host_memory(killed))

    def _status(self) -> dict[str, Any] | None:
        """Returns the running trial's state; None where none of its workers ever reported."""
        job = self._loop.running
        assert job is not None
        status: dict[str, Any] | None = recorders.call(recorders.find(job.recorder), "status", job.trial_id)
        return status

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a study resumes from its journal."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, see `save`."""


def _nodes(ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the addresses of the nodes with these ids, and of those that no longer answer; without ids, of all lost
    nodes.

    Each node is asked at its own port, since the cluster notices a dead node only after some seconds.
    """
    table: dict[str, dict[str, Any]] = {node["NodeID"]: node for node in ray.nodes()}
    back = {node["NodeManagerAddress"] for node in table.values() if node["Alive"]}
    connected = [node for node in table.values() if node["Alive"] or node["NodeManagerAddress"] not in back]
    nodes = [table[node_id] for node_id in ids if node_id in table] if ids else connected
    lost_nodes = [
        node["NodeManagerAddress"]
        for node in nodes
        if not node["Alive"] or error_of(node["NodeManagerAddress"], node["NodeManagerPort"])
    ]
    return [table[node_id]["NodeManagerAddress"] if node_id in table else "" for node_id in ids], list(
        dict.fromkeys(lost_nodes)
    )


def _remove_groups(job_id: str, *, keep_tune: bool = True) -> int:
    """Removes the placement groups of a job, except Tune's where `keep_tune`; returns how many.

    After a trial this is the workers' group, if Train left it (see `trainers.trial.trainable`). Neither Tune nor Train
    names its groups: Tune's are recognised by the node that they request, and stay, since its process continues with
    the next trial. The last four bytes of a group's id are its job's id.
    """
    removed = 0
    for group_id, group in ray.util.placement_group_table().items():
        of_tune = any(name.startswith("node:") for bundle in group["bundles"].values() for name in bundle)
        if group["state"] != "REMOVED" and group_id.endswith(job_id) and not (of_tune and keep_tune):
            with contextlib.suppress(Exception):
                ray.util.remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))))
                removed += 1
    return removed
