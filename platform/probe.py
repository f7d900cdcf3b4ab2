"""What this cluster's devices and links achieve, measured through Ray Train in under a minute.

Matrix products by size and precision and copies on every device; all-reduce, all-gather and reduce-scatter inside and
between nodes by size; the memory of a bare context; what lags. The result is kept under the cluster's fingerprint, and
the predictions of `platform.plan --cluster ray` and the order of `platform.search` use it from then on.

Exit codes: 0, 2 bad input, 3 the cluster is at fault.
"""

import argparse
import dataclasses
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from platform.cluster import connection as clusters
from platform.cluster.nodes import Place
from platform.errors import ClusterError, InputError, Parser, one_line
from platform.probing import kept
from platform.probing.show import show, to_object
from platform.signals import exit_with
from platform.study.folder import FOLDER_HELP, default_folder
from trainers.codec import from_json, to_json
from trainers.probed import Probe

BUDGET_S = 52.0
"""Seconds after the command's start at which workers begin nothing new: what is in flight and the end take the rest of
the minute."""
COLLECTIVE_TIMEOUT_S = 60
"""A link that is down shows as this."""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = Parser(
        prog="python -m platform.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python -m platform.probe --json > probe.json",
    )
    where = 'Ray to run on, "local" for one of its own (default: RAY_ADDRESS, else the cluster whose head this is)'
    made.add_argument("--address", metavar="HOST:PORT", help=where)
    made.add_argument("--studies", type=Path, default=Path(default_folder()), metavar="DIR", help=FOLDER_HELP)
    made.add_argument("--json", action="store_true", help="print the result as JSON, alone on standard output")
    return made


def measure(place: Place, began_s: float) -> Probe:
    """Probes every device of `place`; `began_s` is when the command began, by `time.monotonic`.

    Raises:
        ClusterError: the workers did not start, or one of them failed.
    """
    found = _run(place, until_unix_s=time.time() + BUDGET_S - (time.monotonic() - began_s))
    probe = from_json(
        Probe,
        {
            **found,
            "fingerprint": kept.fingerprint(place.cluster, place.software),
            "cluster": to_json(place.cluster),
            "software": dict(place.software),
        },
    )
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return dataclasses.replace(probe, seconds=round(time.monotonic() - began_s, 1), finished=finished)


def _run(place: Place, until_unix_s: float) -> Mapping[str, Any]:
    import ray.train  # reads at import the settings that `connected` made
    from ray.train.torch import TorchTrainer

    from trainers import probe as workers
    from trainers.process_group import process_group

    with tempfile.TemporaryDirectory(prefix="probe-") as scratch:
        trainer = TorchTrainer(
            workers.train,
            train_loop_config={"until_unix_s": until_unix_s},
            torch_config=process_group(on_cuda=place.has_gpus, timeout_s=COLLECTIVE_TIMEOUT_S, folder=scratch),
            scaling_config=ray.train.ScalingConfig(
                num_workers=place.cluster.num_devices,
                use_gpu=place.has_gpus,
                resources_per_worker={"CPU": place.cpus_per_worker, **({"GPU": 1} if place.has_gpus else {})},
            ),
            run_config=ray.train.RunConfig(
                name="probe",
                storage_path=scratch,
                failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
                logging_config=ray.train.LoggingConfig(log_level="ERROR"),
            ),
        )
        try:
            found = trainer.fit().return_value
        except Exception as error:  # whatever it was, the cluster did not carry the probe through
            failures: Mapping[int, BaseException] = getattr(error, "worker_failures", None) or {}
            said = "; ".join(f"rank {rank}: {_first_line(failure)}" for rank, failure in sorted(failures.items()))
            raise ClusterError(f"the probe failed: {said or _first_line(error)}") from error
    assert isinstance(found, Mapping)  # rank 0 always returns its findings
    return found


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    began_s = time.monotonic()
    try:
        options = parser().parse_args(argv)
        studies = options.studies.expanduser()
        with clusters.connected(options.address) as place:
            probe = measure(place, began_s)
        path = kept.keep(studies, probe)
    except InputError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return InputError.exit_code
    except ClusterError as error:
        print(f"cluster fault: {one_line(error)}", file=sys.stderr)
        return ClusterError.exit_code
    if options.json:
        print(json.dumps(to_object(probe, path), indent=1))
    else:
        show(probe, path, Console())
    return 0


if __name__ == "__main__":
    exit_with(main)
