# pyright: basic
"""Studies to mirror, and their content in MLflow."""

import time
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient

from platform.report.result_files import write_results
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from tests.samples import header, layout, measurement, oom
from trainers.records.journal import End, Measured, RungStart
from trainers.records.measurement import Measurement

POINTS = (
    measurement(
        losses=(12.0, float("nan"), float("inf")),
        grad_norms=(float("inf"), float("nan"), 2.0),
        step_time_derived=True,
        held_back=("power cap", "", "hardware thermal, power cap"),
    ),
    measurement(micro_batch=2, tokens_per_s=50000.0, on=layout(checkpointing="full")),
    oom(micro_batch=4),
)


def write(studies: Path, name: str, *measurements: Measurement, end: int | None = 0) -> Path:
    """Writes a study with these measurements and returns the path of its folder."""
    with Study.create(studies, name) as study:
        study.record(header(name))
        for point in measurements:
            study.record(RungStart(trial_id=point.trial_id, batch=point.batch, deadline_s=60))
            study.record(Measured(measurement=point))
        if end is not None:
            study.record(End(exit_code=end, wall_s=10, gpu_s=40))
        write_results(study.path, StudyResult.of(read(study.path)[0]))
        return study.path


def runs_of(uri: str, name: str):
    """Returns a client, the study's parent run and its children, from a query that any MLflow user could make."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("bloom7b")
    assert experiment is not None
    all_runs = client.search_runs([experiment.experiment_id], f"tags.study = '{name}'", max_results=1000)
    parents = [run for run in all_runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1, parents
    children = [run for run in all_runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    return client, parents[0], children


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    until = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < until, "it did not happen within 900 s"
        time.sleep(0.1)
