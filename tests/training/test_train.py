"""The command on two CPU workers of one Ray: to the end, with a worker that is killed, and on from what is there."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from platform import train
from platform.cluster.connection import connected
from platform.cluster.nodes import Place
from platform.training.ending import summary
from platform.training.folder import TrainingFolder, steps_of
from platform.training.session import opened, train_on
from tests.training.loop_group import DDP, FSDP, STEP
from tests.training.test_plan import write_layout
from trainers.values.layout import Layout
from trainers.values.training import Begun, Saved, Steps, Validated
from trainers.values.training_lines import Reader

pytestmark = [pytest.mark.ray, pytest.mark.mirror]

STEPS = 200


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A Ray of this module's own with two CPU workers."""
    before = dict(os.environ)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        with connected("local", cpu_workers=2) as found:
            yield found
    finally:
        os.environ.clear()
        os.environ |= before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


def run(place: Place, folder: Path, name: str, layout: Layout = DDP, *argv: str) -> tuple[int, dict[str, Any]]:
    """The command's exit code and its summary."""
    target = write_layout(folder / f"{name}.json", layout)
    given = ["--tokens", str(STEPS * STEP), "--out", str(folder / name), "--studies", str(folder)]
    options = train.parse([str(target), *given, "--checkpoint-steps", "20", "--val-tokens", "160", *argv])
    with opened(options) as training:
        code = 0 if training.is_complete else train_on(place, training)
        return code, summary(training.folder, training.plan)


def losses(folder: Path) -> list[float]:
    return [loss for each in steps_of(TrainingFolder(folder).so_far()) for loss in each.losses]


@pytest.fixture(scope="module")
def whole(place: Place, folder: Path) -> dict[str, Any]:
    """The summary of a training that nothing disturbed."""
    code, found = run(place, folder, "whole")
    assert code == 0
    return found


def test_a_training_runs_to_its_end(whole: dict[str, Any], folder: Path):
    assert whole["complete"] and whole["steps"] == STEPS and whole["attempts"] == 1
    assert whole["tokens"] == whole["tokens_saved"] == STEPS * STEP
    found = losses(folder / "whole")
    assert len(found) == STEPS and sum(found[-20:]) < 0.9 * sum(found[:20])


def test_mlflow_has_the_series_and_the_parameters(whole: dict[str, Any], folder: Path):
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    wanted = {"optimizer": "adamw", "global_batch": "4", "grad_accum": "1", "seed": "0", "compression": "none"}
    assert wanted.items() <= found.data.params.items()
    assert {"learning_rate", "precision", "layout", "data"} <= found.data.params.keys()
    logged = {key: client.get_metric_history(found.info.run_id, key) for key in found.data.metrics}
    per_step = {"train_loss", "grad_norm", "learning_rate", "tokens", "train_hours"}
    assert set(logged) == per_step | {"val_loss", "tokens_per_s", "peak_gib"}
    assert {key: len(logged[key]) for key in per_step} == dict.fromkeys(per_step, STEPS)
    assert [each.value for each in logged["train_loss"]] == losses(folder / "whole")
    assert [each.value for each in logged["tokens"]] == [STEP * (i + 1) for i in range(STEPS)]


def test_the_same_command_on_a_complete_training_does_nothing(whole: dict[str, Any], place: Place, folder: Path):
    assert run(place, folder, "whole") == (0, whole)


def test_a_lost_worker_is_replaced_and_the_losses_are_the_undisturbed_ones(
    whole: dict[str, Any], place: Place, folder: Path
):
    killed: list[int] = []
    killer = threading.Thread(target=kill_worker_after, args=(folder / "killed", 40, killed))
    killer.start()
    code, found = run(place, folder, "killed")
    killer.join()
    assert killed, "no worker was there to be killed"
    assert code == 0 and found["attempts"] == 2
    begun = [each.step for each in TrainingFolder(folder / "killed").so_far() if isinstance(each, Begun)]
    assert begun[0] == 0 and begun[1] >= 20 and begun[1] % 20 == 0
    assert losses(folder / "killed") == losses(folder / "whole")
    assert found["val_loss"] == whole["val_loss"]


def test_another_engine_goes_on_where_a_command_was_ended(whole: dict[str, Any], place: Place, folder: Path):
    stopper = threading.Thread(target=stop_after, args=(folder / "moved", 40))
    stopper.start()
    run(place, folder, "moved")
    stopper.join()
    halfway = TrainingFolder(folder / "moved").tokens_saved()
    code, found = run(place, folder, "moved", FSDP)
    assert code == 0 and found["complete"]
    kinds = {type(each) for each in TrainingFolder(folder / "moved").so_far()}
    assert kinds == {Begun, Steps, Validated, Saved} and halfway < STEPS * STEP
    assert losses(folder / "moved") == pytest.approx(losses(folder / "whole"), rel=1e-4)


def kill_worker_after(folder: Path, step: int, killed: list[int]) -> None:
    """Kills one of the training's workers once `step` is recorded."""
    _wait_for(folder, step)
    workers = [
        each
        for each in psutil.Process().children(recursive=True)
        if "RayTrainWorker" in " ".join(each.cmdline()) and each.cpu_times().user > 0
    ]
    if workers:
        killed.append(workers[-1].pid)
        workers[-1].kill()


def stop_after(folder: Path, step: int) -> None:
    """Asks the training to stop, as Ctrl-C does, once `step` is recorded."""
    _wait_for(folder, step)
    TrainingFolder(folder).ask_to_stop()


def _wait_for(folder: Path, step: int) -> None:
    reader, over = Reader(folder / "training.jsonl"), threading.Event()
    while not any(isinstance(each, Steps) and each.last_step >= step for each in reader.read()):
        over.wait(0.02)
