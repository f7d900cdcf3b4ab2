"""Probes every device and link of a cluster through Ray Train."""

import dataclasses
import datetime
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from platform.cluster import head
from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store
from platform.common.errors import ClusterError
from trainers.records.probe import Probe
from trainers.spec.codec import from_json, to_json

BUDGET_S = 52.0
"""Seconds after the command's start at which workers begin nothing new, to end within a minute."""
COLLECTIVE_TIMEOUT_S = 60
"""Seconds after which a collective over a broken link fails."""


def measure(handle: ClusterHandle, began_s: float) -> Probe:
    """Probes every device of `handle`; `began_s` is the command's start by `time.monotonic`.

    Raises:
        ClusterError: the workers did not start, or one of them failed.
    """
    measured = _run(handle, left_s=BUDGET_S - (time.monotonic() - began_s))
    probe = from_json(
        Probe,
        {
            **measured,
            "fingerprint": probe_store.fingerprint(handle.cluster, handle.software),
            "cluster": to_json(handle.cluster),
            "software": dict(handle.software),
        },
    )
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return dataclasses.replace(probe, seconds=round(time.monotonic() - began_s, 1), finished=finished)


def _run(handle: ClusterHandle, left_s: float) -> Mapping[str, Any]:
    import ray.train  # reads at import the settings that `connected` made
    from ray.train.torch import TorchTrainer

    from trainers.distributed.rendezvous import process_group
    from trainers.host.memory_kills import MemoryKills
    from trainers.measuring import probe as workers

    with tempfile.TemporaryDirectory(prefix="probe-") as scratch:
        trainer = TorchTrainer(
            workers.train,
            train_loop_config={"left_s": left_s},
            torch_config=process_group(on_cuda=handle.has_gpus, timeout_s=COLLECTIVE_TIMEOUT_S, folder=scratch),
            scaling_config=ray.train.ScalingConfig(
                num_workers=handle.cluster.num_devices,
                use_gpu=handle.has_gpus,
                resources_per_worker={"CPU": handle.cpus_per_worker, **({"GPU": 1} if handle.has_gpus else {})},
            ),
            run_config=ray.train.RunConfig(
                name="probe",
                storage_path=scratch,
                failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
                logging_config=ray.train.LoggingConfig(log_level="ERROR"),
            ),
        )
        kills = MemoryKills()
        if fault := head.loss_of(handle.raylet):
            raise ClusterError(f"the probe failed: {fault}")
        try:
            result = trainer.fit().return_value
        except Exception as error:  # any error means that the cluster could not complete the probe
            failures: Mapping[int, BaseException] = getattr(error, "worker_failures", None) or {}
            reasons = "; ".join(f"rank {rank}: {_first_line(failure)}" for rank, failure in sorted(failures.items()))
            culprit = f"; {neighbour}" if (neighbour := kills.neighbour()) else ""
            raise ClusterError(f"the probe failed: {reasons or _first_line(error)}{culprit}") from error
    assert isinstance(result, Mapping)  # rank 0 always returns its findings
    return result


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
