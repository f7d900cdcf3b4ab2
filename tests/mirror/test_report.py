# pyright: basic
"""`python -m platform.report` brings MLflow up to date where the search could not."""

import dataclasses
import subprocess
import sys
from pathlib import Path

from mlflow import MlflowClient

import platform.report as report
from platform.mirror.mirror import Mirror, default_uri
from platform.study.study import Study
from tests.samples import header, measurement, oom
from trainers.journal import End, Measured

ROOT = Path(__file__).parents[2]


def test_a_copy_of_a_study_is_mirrored_beside_itself(studies: Path, tmp_path: Path) -> None:
    there = tmp_path / "on another machine" / "mlflow.db"
    with Study.create(studies, "fetched") as study:
        study.record(dataclasses.replace(header("fetched"), mlflow_uri=f"sqlite:///{there}"))
        study.record(Measured(measurement=measurement()))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
    assert report.main(["fetched", "--studies", str(studies)]) == 0
    assert (studies / "mlflow.db").exists() and not there.parent.exists()


def test_what_was_not_mirrored_is_caught_up(studies: Path, closed_port: int) -> None:
    with Study.create(studies, "behind") as study:
        study.record(header("behind"))
        mirror = Mirror(study.path, f"http://127.0.0.1:{closed_port}").start()
        for each in (measurement(), oom(micro_batch=4)):
            study.record(Measured(measurement=each))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        assert "python -m platform.report behind" in mirror.close(2)
    command = [sys.executable, "-m", "platform.report", "behind", "--studies", str(studies), "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "MLflow is up to date: mlflow ui --backend-store-uri 'sqlite:////" in result.stderr
    client = MlflowClient(tracking_uri=default_uri(studies))
    experiment = client.get_experiment_by_name("bloom7b")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.study = 'behind'")
    assert sorted(run.data.tags.get("outcome", "study") for run in runs) == ["ok", "oom", "study"]
