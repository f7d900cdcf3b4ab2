"""The train function of Ray Train: one rank of a training as Ray's worker."""

import time
from collections.abc import Mapping
from typing import Any

import ray.train

from trainers.records.training import TrainingJob
from trainers.spec.codec import from_json
from trainers.startup import prestart
from trainers.training.worker import TrainingWorker


def train(config: Mapping[str, Any]) -> str:
    """Trains; `config` is a `TrainingJob` as JSON. Returns why the attempt ended.

    Raises:
        RungFailure: this rank failed; states the cause.
    """
    started_s = time.perf_counter()
    prestart.keep_to_share()
    job = from_json(TrainingJob, config)
    worker = TrainingWorker(job, started_s)
    try:
        if not job.layout.steps_on_host:  # an optimizer that steps on the host needs all its cores
            prestart.ask(ray.train.get_context().get_local_world_size(), job.cpus_per_worker)
        return worker.run()
    except Exception as error:
        worker.fail(error)
