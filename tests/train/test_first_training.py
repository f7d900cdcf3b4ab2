"""The commands of docs/first-training.md, run as they stand there: from text files to a report and loss curves."""

import shutil
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

import mlflow
import pytest
from transformers import AutoModelForCausalLM

from platform.train.training_folder import TrainingFolder, steps_of
from tests.loopback import free_port
from tests.train.pages import ROOT, commands, followed
from trainers.records.training import Begun

pytestmark = [pytest.mark.ray, pytest.mark.mirror, pytest.mark.search, pytest.mark.heavy]

PAGE = ROOT / "docs" / "first-training.md"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, port: int) -> Generator[Path]:
    """Yields the folder in which all commands ran, one after the other, in one shell; the processes that they leave
    running are killed afterwards.
    """
    folder = tmp_path_factory.mktemp("first")
    shutil.copytree(ROOT / "docs", folder / "docs")
    script = "\n".join(commands(PAGE)).replace("--port 5000", f"--port {port}")
    assert f"--port {port}" in script
    with followed(script, folder, timeout_s=1800):
        yield folder


def test_the_training_was_killed_once_and_went_on_to_its_end(folder: Path):
    training = TrainingFolder(folder / "studies" / "first" / "training")
    records = training.read_records()
    begun = [record.step for record in records if isinstance(record, Begun)]
    assert begun[0] == 0 and len(begun) == 2 and begun[1] >= 20
    plan = training.plan()
    assert plan is not None and plan.phase_at(training.tokens_saved()) is None
    steps = [step for record in steps_of(records) for step in range(record.first_step, record.last_step + 1)]
    assert steps == list(range(1, len(steps) + 1))
    losses = [loss for record in steps_of(records) for loss in record.losses]
    assert losses[-1] < 0.8 * losses[0]


def test_the_model_is_read_by_transformers(folder: Path):
    plan = TrainingFolder(folder / "studies" / "first" / "training").plan()
    assert plan is not None
    assert AutoModelForCausalLM.from_pretrained(folder / "model").num_parameters() == plan.recipe.model.num_parameters


def test_the_report_is_one_page_that_needs_no_network(folder: Path):
    page = (folder / "first.html").read_text()
    assert "<html" in page and "tokens/s" in page
    assert 'src="http' not in page and 'href="http' not in page


def test_mlflow_shows_one_curve_of_the_killed_training(folder: Path, port: int):
    until_s = time.monotonic() + 300
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                assert answer.status == 200
                break
        except OSError:
            assert time.monotonic() < until_s, "MLflow does not answer"
            time.sleep(1)
    client = mlflow.MlflowClient(tracking_uri=f"http://127.0.0.1:{port}")
    runs = client.search_runs([search_experiment.experiment_id for search_experiment in client.search_experiments()])
    (run,) = [tracked_run for tracked_run in runs if tracked_run.info.run_name == "training"]
    curve = client.get_metric_history(run.info.run_id, "train_loss")
    assert [metric.step for metric in curve] == list(range(1, len(curve) + 1)) and len(curve) > 20
    assert client.get_metric_history(run.info.run_id, "val_loss")
    assert run.info.status == "FINISHED"
