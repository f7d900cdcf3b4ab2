"""Trainings by two CPU workers of one Ray: to the end, and with a worker that is killed, a stop and another engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest

from platform.train.training_folder import TrainingFolder, steps_of
from tests.dead_driver import session_of_dead_driver
from tests.training.environment import ENVIRONMENT
from tests.training.trainings import STEPS, train
from tests.training.values import STEP
from tests.whole_searches.session import beyond_loopback
from trainers.records.training import Begun, Saved, Saving, Steps, Validated

pytestmark = [pytest.mark.ray, pytest.mark.mirror]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, Any]:
    """Returns how each training ended: its exit code and its summary."""
    command = [sys.executable, "-m", "tests.training.trainings", str(folder)]
    completed = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    return json.loads((folder / "ended.json").read_text())


def losses(folder: Path) -> list[float]:
    return [loss for step in steps_of(TrainingFolder(folder).read_records()) for loss in step.losses]


def begun(folder: Path) -> list[int]:
    """Returns the steps after which the attempts of the training began."""
    return [read_record.step for read_record in TrainingFolder(folder).read_records() if isinstance(read_record, Begun)]


def held_out(folder: Path, steps: int) -> dict[int, float]:
    """Returns the held-out losses by step, up to step `steps`."""
    validations = [
        read_record for read_record in TrainingFolder(folder).read_records() if isinstance(read_record, Validated)
    ]
    return {validation.step: validation.loss for validation in validations if validation.step <= steps}


def test_a_training_runs_to_its_end(outcomes: dict[str, Any], folder: Path):
    code, undisturbed = outcomes["whole"]
    assert code == 0 and undisturbed["complete"] and undisturbed["steps"] == STEPS
    assert undisturbed["tokens"] == undisturbed["tokens_saved"] == STEPS * STEP
    all_losses = losses(folder / "whole")
    assert len(all_losses) == STEPS and sum(all_losses[-20:]) < 0.9 * sum(all_losses[:20])


def test_mlflow_has_the_series_and_the_parameters(outcomes: dict[str, Any], folder: Path):
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"whole", "moved"}
    mlflow_run = runs["whole"]
    assert mlflow_run.info.status == "FINISHED"
    parameters = {"optimizer": "adamw", "global_batch": "4", "grad_accum": "1", "seed": "0", "compression": "none"}
    assert parameters.items() <= mlflow_run.data.params.items()
    assert {"learning_rate", "precision", "layout", "data"} <= mlflow_run.data.params.keys()
    logged = {key: client.get_metric_history(mlflow_run.info.run_id, key) for key in mlflow_run.data.metrics}
    per_step = {"train_loss", "grad_norm", "learning_rate", "tokens", "train_hours"}
    per_loss = {"val_loss", "val_tokens", "val_hours"}
    assert set(logged) == per_step | per_loss | {"tokens_per_s", "peak_gib"}
    assert len({tuple(metric.step for metric in logged[key]) for key in per_loss}) == 1
    assert {key: len(logged[key]) for key in per_step} == dict.fromkeys(per_step, STEPS)
    assert [metric.value for metric in logged["train_loss"]] == losses(folder / "whole")
    assert [metric.value for metric in logged["tokens"]] == [STEP * (i + 1) for i in range(STEPS)]


def test_a_lost_worker_leaves_no_trace_in_mlflow(outcomes: dict[str, Any], folder: Path):
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    history = client.get_metric_history(runs["moved"].info.run_id, "train_loss")
    assert [(metric.step, metric.value) for metric in history] == list(enumerate(losses(folder / "moved"), start=1))
    assert len(history) == STEPS


def test_the_same_command_on_a_complete_training_does_nothing(outcomes: dict[str, Any]):
    assert outcomes["whole again"] == outcomes["whole"]


def test_a_complete_training_sweeps_what_its_killed_driver_left(
    outcomes: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    abandoned = session_of_dead_driver(folder)
    arguments = ["--tokens", str(STEPS * STEP), "--out", str(folder / "whole"), "--studies", str(folder)]
    arguments += ["--checkpoint-steps", "20", "--val-tokens", "160"]
    assert train.main([str(folder / "whole.json"), *arguments]) == 0
    assert not abandoned.exists()


def test_nothing_listens_beyond_this_machine_during_a_training(outcomes: dict[str, Any]):
    names = {name for name, _ in outcomes["listening"]}
    assert {"gcs_server", "raylet"} <= names and any("RayTrainWorker" in name for name in names), names
    assert beyond_loopback((name, address) for name, address in outcomes["listening"]) == []


def test_a_training_starts_its_workers_and_no_process_that_helps_them(outcomes: dict[str, Any]):
    names = " ".join(name for name, _ in outcomes["listening"])
    for helper in ("PlacementGroupCleaner", "DatasetManager", "AutoscalingCoordinator"):
        assert helper not in names, "seconds of an attempt"


def test_a_lost_worker_is_replaced_and_the_losses_are_the_undisturbed_ones(outcomes: dict[str, Any], folder: Path):
    assert outcomes["killed pids"], "no worker was there to be killed"
    assert outcomes["stopped"][1]["attempts"] >= 2
    first, second, *_, moved = begun(folder / "moved")
    assert first == 0 and second >= 20 and second % 20 == 0 and moved >= second + 20
    assert losses(folder / "moved")[:moved] == losses(folder / "whole")[:moved]
    assert held_out(folder / "moved", moved) == held_out(folder / "whole", moved)


def test_another_engine_goes_on_where_a_command_was_ended(outcomes: dict[str, Any], folder: Path):
    (stopped, halfway), (code, report) = outcomes["stopped"], outcomes["moved"]
    assert stopped == 130 and halfway["tokens_saved"] == begun(folder / "moved")[-1] * STEP < STEPS * STEP
    assert code == 0 and report["complete"]
    kinds = {type(read_record) for read_record in TrainingFolder(folder / "moved").read_records()}
    assert kinds == {Begun, Steps, Validated, Saving, Saved}
    assert losses(folder / "moved") == pytest.approx(losses(folder / "whole"), rel=1e-4)
