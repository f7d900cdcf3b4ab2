"""The Tune trainable of a learning rate: a short training and its last held-out loss."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.tune

from trainers.records.training import TrainingJob, Validated
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import Reader
from trainers.spec.codec import from_json
from trainers.training import attempt


def run_rate(config: Mapping[str, Any]) -> None:
    """Runs the `TrainingJob` in `config["jobs"][config["index"]]`; reports its last held-out loss and the reason if it
    failed. The loss is infinite if there is none or it is not finite.
    """
    job = from_json(TrainingJob, config["jobs"][config["index"]])
    attempt_end = attempt.run(job, Path(config["storage"]), tuple(config["nodes"]))
    losses = [record.loss for record in Reader(Path(job.folder) / RECORDS).read() if isinstance(record, Validated)]
    loss = losses[-1] if losses and attempt_end.state == "done" and math.isfinite(losses[-1]) else math.inf
    ray.tune.report({"val_loss": loss, "index": config["index"], "reason": attempt_end.reason})
