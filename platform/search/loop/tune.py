"""The only module that calls Ray Tune: turns the loop's jobs into Tune trials, and Tune's ends into the loop's."""

import contextlib
import dataclasses
import io
import logging
import math
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import ray
import ray.tune
from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.execution import tune_controller
from ray.tune.experiment import trial as tune_trial
from ray.tune.search import Searcher as TuneSearcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from platform.cluster.leftovers import Note
from platform.common.errors import ClusterError
from platform.common.text import plural
from platform.search.loop.lanes import TUNE_CPU
from platform.search.loop.loop import SearchLoop
from platform.search.loop.together import Together
from trainers.host.memory_kills import MemoryKills, wait_for_memory
from trainers.host.node import error_of
from trainers.records.job import Job
from trainers.spec.codec import to_json
from trainers.trial import placement_groups
from trainers.trial import recorder as recorders
from trainers.trial.recorder import MAX_RESTARTS, Recorder, RecorderError
from trainers.trial.trainable import host_memory, run_trial, write

MOST_TRIALS = 1024
"""Largest number of simultaneous trials told to Tune; the nodes present when a trial begins are the real limit."""
LANES_TO_COME = 64
"""Number of trials side by side for which the CPUs of Tune's side suffice, however few a search begins with."""


@contextlib.contextmanager
def recorder(journal: Path, state: Path) -> Generator[str]:
    """Runs the study's recorder actor on this node and yields its name.

    Ray restarts it if it dies. The file `state` keeps its data that are not in the journal.

    Raises:
        ClusterError: it did not start.
    """
    name = f"recorder-{uuid.uuid4().hex[:8]}"
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"name": name, "num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": this_node}
    options |= {"max_restarts": MAX_RESTARTS, "max_task_retries": -1}
    actor = cast(Any, ray.remote(Recorder).options(**options).remote(str(journal), str(state)))
    try:
        recorders.call(actor, "ready")
    except RecorderError as error:
        raise ClusterError(str(error)) from error
    try:
        yield name
    finally:
        ray.kill(actor)


def note_of(*, is_local: bool, scratch: Path) -> Note:
    """Returns a note of this driver's resources on the cluster, for a later driver if this one is killed."""
    context = ray.get_runtime_context()
    return Note(
        ray_session=cast(Any, ray)._private.worker.global_worker.node.get_session_dir_path() if is_local else "",
        cluster=context.get_session_name(),
        job_id=context.get_job_id(),
        scratch=str(scratch),
    )


def sweep(note: Note) -> str:
    """Removes a killed driver's resources from this cluster; returns a sentence about them, "" if there were none.

    Ray ends a dead driver's actors itself, and should end its placement groups too.
    """
    if note.cluster != ray.get_runtime_context().get_session_name():
        return ""
    removed = placement_groups.remove_all(note.job_id)
    return (
        f"Removed from the cluster what the killed search left: {plural(removed, 'placement group')}."
        if removed
        else ""
    )


def run(loops: Sequence[SearchLoop], *, driver_ip: str, scratch: Path) -> None:
    """Runs the jobs of all loops, each as soon as it exists, until there are no more. Tune keeps its files in
    `scratch`.

    Raises:
        KeyboardInterrupt: the user asked to stop; workers end with the connection to Ray.
        ClusterError: the journal could not be written.
    """
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)
    # A head without CPUs, as in large clusters, could never place a fraction of one.
    together = Together(loops)
    cpu = share_of_tune(together.num_lanes) if _cpus_of(driver_ip) >= 1 else 0.0
    trainable = ray.tune.with_resources(run_trial, {"CPU": cpu, f"node:{driver_ip}": 0.001})
    tuner = ray.tune.Tuner(
        trainable,
        param_space={"storage": f"{scratch}/train"},
        tune_config=ray.tune.TuneConfig(
            search_alg=(bridge := _Bridge(together)),
            num_samples=-1,
            max_concurrent_trials=MOST_TRIALS,
            reuse_actors=True,  # Tune's side of a trial takes 5 s to import Train, so it is done once per lane
        ),
        run_config=ray.tune.RunConfig(
            name="tune",
            storage_path=str(scratch),
            verbose=0,
            failure_config=ray.tune.FailureConfig(max_failures=0, fail_fast=False),
        ),
    )
    # Standard output is for the table and --json.
    with contextlib.redirect_stdout(io.StringIO()), _memory_kills_as_deaths():
        tuner.fit()
    if bridge.fault is not None:
        raise bridge.fault


class _ActorManager(RayActorManager):
    """Tune's actors, of which one may be killed by Ray's memory monitor: Tune would raise that error to the driver,
    because it is not an error of an actor.
    """

    # Private API of Ray. If a release no longer calls these methods, such a kill ends the search.
    def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
        super()._actor_start_failed(tracked_actor, _as_death(exception))

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        super()._actor_task_failed(tracked_actor_task, _as_death(exception))


def _as_death(exception: Exception) -> Exception:
    return RayActorError(error_msg=str(exception)) if isinstance(exception, OutOfMemoryError) else exception


@contextlib.contextmanager
def _memory_kills_as_deaths() -> Generator[None]:
    controller, trials = cast(Any, tune_controller), cast(Any, tune_trial)
    controller.RayActorManager = _ActorManager
    trials.RayActorError = (RayActorError, OutOfMemoryError)  # `except` and `isinstance` take both
    try:
        yield
    finally:
        controller.RayActorManager, trials.RayActorError = RayActorManager, RayActorError


def share_of_tune(num_lanes: int) -> float:
    """Returns the CPUs of Tune's side of one trial of a search with `num_lanes` lanes at its beginning."""
    return math.floor(1e4 * TUNE_CPU / max(LANES_TO_COME, num_lanes) + 1e-9) / 1e4  # Ray counts ten thousandths


def _cpus_of(ip: str) -> float:
    nodes: list[dict[str, Any]] = ray.nodes()
    return max((node["Resources"].get("CPU", 0.0) for node in nodes if f"node:{ip}" in node["Resources"]), default=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A running trial with its loop."""

    loop: SearchLoop
    job: Job
    kills: MemoryKills
    """Memory kills since the trial began, on its nodes and on the driver's."""


class _Bridge(TuneSearcher):
    """The loops as a Tune searcher and scheduler. The journal holds all state, so Tune's files hold none."""

    def __init__(self, together: Together) -> None:
        super().__init__(metric="wall_s", mode="min")
        self._together = together
        self.fault: ClusterError | None = None
        """The error that ended the search; Tune raises its own error after a failed trial instead."""
        self._trials: dict[str, _Trial] = {}
        """The running trials, by Tune's ids."""
        self._is_short = False
        """Whether the last trial to end lost its host's memory to a process outside the search."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    # Ray's annotation omits FINISHED, a str.
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.fault is not None:
            return TuneSearcher.FINISHED
        if self._is_short:
            wait_for_memory()
            self._is_short = False
        if (begun := self._together.next_job()) is None:
            return None if self._trials else TuneSearcher.FINISHED
        loop, job = begun
        self._tell("joined", loop, job)
        this_node = ray.get_runtime_context().get_node_id()
        kills = MemoryKills((*job.nodes, this_node) if job.nodes else ())
        self._trials[trial_id] = _Trial(loop=loop, job=job, kills=kills)
        return {"job": to_json(job)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        reported: dict[str, Any] = result or {}
        trial = self._trials.pop(trial_id)
        loop, job, is_silent = trial.loop, trial.job, error or "state" not in reported
        self._tell("ended", loop, job)
        if is_silent:
            placement_groups.remove_of_the_dead(ray.get_runtime_context().get_job_id())
        state = "failed" if is_silent else reported["state"]
        status: dict[str, Any] | None = None
        fault, is_crowded, neighbour = "", False, ""
        try:
            killed = trial.kills.since() if is_silent else reported.get("killed", "")
            if killed:
                on_driver = is_silent or ray.get_runtime_context().get_node_id() in job.nodes
                # Tune's side of every other trial runs on the driver's host.
                is_crowded = bool(loop.neighbours(job.trial_id, on_its_nodes=not on_driver))
                neighbour = trial.kills.neighbour(has_commands=bool(job.recipe.command))
                reason = host_memory(killed, rank=reported.get("rank")).reason
                reported = {**reported, "reason": f"{reason}; {neighbour}" if neighbour else reason}
                self._is_short = bool(neighbour)
                if not is_crowded and not neighbour:
                    write(job, recorders.find(job.recorder), host_memory(killed, rank=reported.get("rank")))
            if state == "failed":
                status = self._call("status", job)
            self._call("ended", job)
        except RecorderError as recorder_error:
            fault = str(recorder_error)
        of_ranks: list[str] = status["nodes"] if status else []
        nodes, lost_nodes = _nodes(of_ranks or job.nodes) if state == "failed" else ([], [])
        try:
            loop.on_trial_end(
                job.trial_id,
                state=state,
                reason=reported.get("reason", "") or fault,
                started=state != "failed" or status is not None,
                rank=reported.get("rank"),
                nodes=nodes if of_ranks else [],
                lost_nodes=lost_nodes,
                is_crowded=is_crowded and not neighbour,
                is_starved=bool(neighbour),
            )
        except ClusterError as unwritten:
            self.fault = unwritten
        if fault:
            loop.fault = fault

    def _tell(self, method: str, loop: SearchLoop, job: Job) -> None:
        """Tells other searches' recorders of a trial beside theirs. An error there only ends that other search."""
        for other in loop.beside:
            with contextlib.suppress(RecorderError):
                recorders.call(recorders.find(other.settings.recorder), method, loop.id_in(other, job))

    def _call(self, method: str, job: Job) -> dict[str, Any] | None:
        """Returns the recorder's answer about a trial; None if none of its workers ever reported."""
        return recorders.call(recorders.find(job.recorder), method, job.trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a study resumes from its journal."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, see `save`."""


def _nodes(ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the addresses of the nodes with these ids, and of those that no longer answer; without ids, of all lost
    nodes.

    Each node is asked at its own port, because the cluster notices a dead node only after some seconds.
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
