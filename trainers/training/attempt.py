"""One attempt at a training: a `TorchTrainer` run from the newest checkpoint on, and how it ended."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

import ray.train
from ray.train.torch import TorchTrainer

from trainers.distributed.rendezvous import process_group
from trainers.host.failures import classify, one_line
from trainers.host.memory_kills import MemoryKills, wait_for_memory
from trainers.records.training import TrainingJob
from trainers.spec.codec import to_json
from trainers.startup import prestart
from trainers.training import ray_rank
from trainers.trial.trainable import COLLECTIVE_TIMEOUT_S, by_rank, host_memory, lean

State = Literal["done", "stopped", "lost", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    state: State
    """ "done" with its phases; "stopped" by the driver, with a checkpoint; "lost" if a worker process died, so that
    another attempt may continue; "failed" for a reason that would recur.
    """
    reason: str = ""


def run(job: TrainingJob, storage: Path, nodes: tuple[str, ...] = ()) -> AttemptEnd:
    """Runs the attempt on `nodes` (Ray ids; empty for all); never raises for a worker's failure. Train's own files go
    to `storage`.
    """
    kills = MemoryKills()
    try:
        stopped = _trainer(job, storage, nodes).fit().return_value == "stopped"
        return AttemptEnd(state="stopped" if stopped else "done")
    except Exception as error:
        raised, dead = by_rank(error)
        verdict = classify(raised, dead=dead, otherwise=one_line(getattr(error, "controller_failure", error)))
        if verdict.silent and (killed := kills.since()):
            verdict = host_memory(killed, rank=verdict.rank)
        if verdict.killed and (neighbour := kills.neighbour()):
            wait_for_memory()
            return AttemptEnd(state="lost", reason=f"{verdict.reason}; {neighbour}")
        return AttemptEnd(state="lost" if verdict.silent else "failed", reason=verdict.reason)


class _Trainer(TorchTrainer):
    """A `TorchTrainer` without helper processes that a training does not need."""

    def _initialize_and_run_controller(self, **options: Any) -> Any:
        return super()._initialize_and_run_controller(**lean(options))


def _trainer(job: TrainingJob, storage: Path, nodes: tuple[str, ...]) -> TorchTrainer:
    on_cuda = job.cluster.device_kind == "cuda"
    return _Trainer(
        ray_rank.train,
        train_loop_config=to_json(job),
        torch_config=process_group(on_cuda=on_cuda, timeout_s=COLLECTIVE_TIMEOUT_S, folder=str(storage)),
        scaling_config=ray.train.ScalingConfig(
            num_workers=job.layout.world_size,
            use_gpu=on_cuda,
            resources_per_worker={"CPU": job.cpus_per_worker, **({"GPU": 1} if on_cuda else {})},
            label_selector={"ray.io/node-id": f"in({','.join(nodes)})"} if nodes else None,
            placement_strategy="STRICT_PACK" if on_cuda and job.cluster.num_nodes == 1 else "PACK",
        ),
        run_config=ray.train.RunConfig(
            name=f"attempt-{job.attempt}-{os.getpid()}",
            storage_path=str(storage),
            worker_runtime_env={"env_vars": {prestart.IS_WORKER: "1"}},
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
        ),
    )
