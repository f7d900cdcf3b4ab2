"""The Tune trainable: a trial is one `TorchTrainer` run, and every way it ends is reported as a result."""

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.train
import ray.tune
from ray.exceptions import OutOfMemoryError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

from trainers.distributed.rendezvous import process_group
from trainers.host.failures import EndCause, RungFailure, classify, one_line
from trainers.host.memory_kills import MemoryKills
from trainers.host.watchdog import EXIT_CODE
from trainers.records.job import Job
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json, to_json
from trainers.startup import prestart
from trainers.trial import command_trial, placement_groups, worker
from trainers.trial import recorder as recorders
from trainers.trial.recorder import RecorderError, RecorderGoneError

START_S = 300.0
"""Seconds that placing and starting the workers may take before rank 0 first reports."""
COLLECTIVE_TIMEOUT_S = 900
"""Timeout of collectives; above the watchdog's limit, so that the watchdog reports first."""

_UNUSED_CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")
"""Callbacks of Ray Train that are not needed: one distributes shards of Ray Data, one removes the placement group of an
ended trial.
"""


def run_trial(config: Mapping[str, Any]) -> None:
    """Runs the `Job` in `config["job"]` and reports to Tune how it ended. Never raises for a worker's failure."""
    job = from_json(Job, config["job"])
    recorder = recorders.find(job.recorder)
    started_s, kills = time.monotonic(), MemoryKills(job.nodes)
    is_over = threading.Event()  # the process continues with the next trial
    threading.Thread(target=_watch, args=(job, recorder, started_s, is_over), daemon=True).start()
    state, reason, rank, killed = "done", "", None, ""
    try:
        if job.recipe.command:
            state, reason = command_trial.run(job)
        elif _trainer(job, config["storage"]).fit().return_value:
            state, reason = "interrupted", command_trial.OUT_OF_TIME
    except Exception as error:
        raised, dead = by_rank(error)
        verdict = classify(raised, dead=dead, otherwise=one_line(getattr(error, "controller_failure", error)))
        if unrecorded := next((failure for failure in raised.values() if isinstance(failure, RecorderError)), None):
            verdict = EndCause(outcome=Outcome.FAILED, reason=str(unrecorded), silent=True)
        if verdict.silent and (clause := kills.since()):
            verdict = host_memory(clause, rank=verdict.rank)
        rank = verdict.rank
        try:
            # The driver decides whether another trial or a process outside the search may be the cause.
            if verdict.killed:
                state, reason, killed = "failed", verdict.reason, verdict.killed
            else:
                state, reason = write(job, recorder, verdict)
        except RecorderError as recorder_error:
            state, reason = "failed", str(recorder_error)
    finally:
        is_over.set()
        placement_groups.remove_own()
    ended = {"state": state, "reason": reason, "rank": rank, "killed": killed}
    ray.tune.report({**ended, "wall_s": time.monotonic() - started_s})


class _OnNodesThatAreThere(FixedScalingPolicy):
    """Requests nothing from the autoscaler: Train's request would replace the driver's, which covers all nodes."""

    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


def lean(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of Train's controller without the parts that start three unneeded processes, seconds each.

    One hands out shards of Ray Data. One asks the dashboard every second whether to remove the placement group, which
    `run_trial` does itself. One asks the autoscaler for resources.
    """
    callbacks = [option for option in options["callbacks"] if type(option).__name__ not in _UNUSED_CALLBACKS]
    return {
        **options,
        "callbacks": callbacks,
        "scaling_policy": _OnNodesThatAreThere(options["scaling_policy"].scaling_config),
    }


class _Trainer(TorchTrainer):
    """Runs Train's controller in this process, which continues with the next trial; a separate process would import
    torch for every trial.
    """

    # Private API of Ray. If a release no longer calls this method, separate processes start again; if it moves the
    # controller's class, the import above fails.
    def _initialize_and_run_controller(self, **options: Any) -> Any:
        controller = TrainController(**lean(options))
        asyncio.run(controller.run())
        return controller.get_result()


def _trainer(job: Job, storage: str) -> TorchTrainer:
    on_cuda = job.cluster.device_kind == "cuda"
    resources = {"CPU": job.cpus_per_worker, **({"GPU": 1} if on_cuda else {})}
    return _Trainer(
        worker.train,
        train_loop_config=to_json(job),
        torch_config=process_group(on_cuda=on_cuda, timeout_s=COLLECTIVE_TIMEOUT_S, folder=str(Path(storage).parent)),
        scaling_config=ray.train.ScalingConfig(
            num_workers=job.layout.world_size,
            use_gpu=on_cuda,
            resources_per_worker=resources,
            label_selector={"ray.io/node-id": f"in({','.join(job.nodes)})"} if job.nodes else None,
            # Nodes are counted by GPUs; a CPU cluster's workers may need more than one node.
            placement_strategy="STRICT_PACK" if on_cuda and job.cluster.num_nodes == 1 else "PACK",
        ),
        run_config=ray.train.RunConfig(
            name=f"{job.recorder}-{job.trial_id}-{os.getpid()}",
            storage_path=storage,
            worker_runtime_env={"env_vars": {prestart.IS_WORKER: "1"}},
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
        ),
    )


def write(job: Job, recorder: Any, verdict: EndCause) -> tuple[str, str]:
    """Records the verdict in the journal, at the batch point in progress; returns the trial's state and reason.

    Nothing is recorded before rank 0's first report, which is a failure of the cluster; after a silent death, which the
    search may retry; and for a trial that only ran the numerics gate.

    Raises:
        RecorderError: the recorder does not answer.
    """
    status: dict[str, Any] | None = recorders.call(recorder, "status", job.trial_id)
    if status is None or verdict.silent or not job.rungs:
        return "failed", verdict.reason
    batch = from_json(BatchPoint, status["batch"]) if status["batch"] else job.rungs[0]
    measurement = job.measurement(
        batch,
        verdict.outcome,
        reason=verdict.reason,
        phase=verdict.phase or status["phase"],
        rank=verdict.rank,
        asked_gib=verdict.asked_gib,
        allocated_gib=verdict.allocated_gib,
        reserved_gib=verdict.reserved_gib,
    )
    recorders.call(recorder, "measured", job.trial_id, to_json(measurement), to_json(job.rungs))
    return ("done" if verdict.outcome is Outcome.OOM else "failed"), verdict.reason


def _watch(job: Job, recorder: Any, started_s: float, is_over: threading.Event) -> None:
    """Ends this process, and with it the trial's workers, if rank 0 is overdue, which no worker can notice."""
    while not is_over.wait(2):
        try:
            status: dict[str, Any] | None = recorders.call(recorder, "status", job.trial_id, limit_s=30)
        except RecorderGoneError:  # the study cannot continue without it; the driver ends the search
            os._exit(EXIT_CODE)
        except RecorderError:  # a slow disk or a short interruption is no reason to end a trial
            continue
        waited_s = time.monotonic() - started_s
        if status is None and waited_s > START_S:
            reason = f"no worker reported within {START_S:.0f} s of the trial's start"
        elif status is not None and status["overdue_s"] > job.hang_floor_s:
            reason = f"rank 0 is {status['overdue_s']:.0f} s overdue in {status['phase']}"
        else:
            continue
        try:
            write(job, recorder, EndCause(outcome=Outcome.HUNG, reason=reason))
        finally:
            os._exit(EXIT_CODE)


def by_rank(error: BaseException) -> tuple[dict[int, BaseException], dict[int, str]]:
    """Returns the error that each rank raised, and Ray's message for ranks whose process died. A rank killed by Ray's
    memory monitor is reported here, because it cannot report itself.
    """
    raised: dict[int, BaseException] = {}
    dead: dict[int, str] = {}
    for rank, failure in dict(getattr(error, "worker_failures", None) or {}).items():
        death = getattr(failure, "health_check_failure", None)
        if death is None:
            raised[rank] = failure
        elif isinstance(death, OutOfMemoryError):
            killed = host_memory(_death(death), rank=rank)
            failed = RungFailure(killed.outcome, killed.reason, phase="", rank=rank)  # the trial's phase is used
            failed.killed = killed.killed
            raised[rank] = failed
        else:
            dead[rank] = _death(death)
    return raised, dead


def host_memory(killed: str, *, rank: int | None = None) -> EndCause:
    """Returns the verdict on a trial with a process that was killed because host memory ran out; `killed` names the
    killer.
    """
    process_text = "a process of the trial" if rank is None else f"the process of rank {rank}"
    reason = f"{process_text} was killed because host memory ran out: {killed}"
    return EndCause(outcome=Outcome.OOM, reason=reason, rank=rank, killed=killed)


def _death(error: BaseException) -> str:
    """Returns Ray's line on why the worker process died, or the error's first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "exit" in line.lower() or "killed" in line.lower()), one_line(error))[:300]
