"""The training's run in MLflow, from records: series by step, once each, over several sessions."""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest

import platform.train.mlflow_run as mlflow_run  # pyright takes `from platform import` for the standard module
from platform.tracking.serve import newest
from platform.train.mlflow_run import TrainingRun
from tests.training.values import DDP, FSDP, STEP, STEPS, plan
from trainers.records.training import Begun, TrainingPlan, Validated
from trainers.records.training_lines import write

pytestmark = pytest.mark.mirror

BEGUN = Begun(attempt=1, step=0, tokens=0, startup_s=5.0, layout="DDP", nodes=("a",), matmul_tflops=(1.0,))
FIRST = dataclasses.replace(STEPS, train_s=7200.0, steps_s=3600.0)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def follow(uri: str, records: Path, state: str = "FINISHED") -> None:
    """Brings the run up to date and closes it."""
    TrainingRun(plan(), uri=uri, name="first", training_id="0123", records=records).close(state, limit_s=600)


def history(uri: str) -> dict[str, list[tuple[int, float]]]:
    """Returns the series of the only run, by metric."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    metric_histories: dict[str, Any] = {
        key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics
    }
    return {key: [(value.step, value.value) for value in values] for key, values in metric_histories.items()}


def test_a_training_has_a_view_whose_first_charts_are_both_losses(uri: str, tmp_path: Path) -> None:
    records = tmp_path / "training.jsonl"
    for record in (BEGUN, FIRST):
        write(records, record)
    follow(uri, records)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    address = run.data.tags["mlflow.layoutSearch.losses"]
    state = json.loads(json.loads(experiment.tags["mlflow.sharedViewState.training-0123"])["state"])
    assert [chart["metricKey"] for chart in state["compareRunCharts"][:2]] == ["val_loss", "train_loss"]
    assert "viewStateShareKey=training-0123&" in address
    assert f"(#{address.partition('/#')[2]})" in run.data.tags["mlflow.note.content"]
    page = f"http://127.0.0.1:5077/#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}"
    losses = address.replace(":5000", ":5077")
    assert newest(tmp_path / "mlflow.db", 5077) == ["first:", f"  page     {page}", f"  losses   {losses}"]
    assert newest(tmp_path / "none.db", 5077) == newest(None, 5077) == []


def test_a_second_session_adds_what_is_new_and_nothing_twice(uri: str, tmp_path: Path):
    records = tmp_path / "training.jsonl"
    validated = Validated(attempt=1, step=0, tokens=0, loss=5.0, train_s=1.0, wall_s=1.0)
    for record in (BEGUN, validated, FIRST):
        write(records, record)
    follow(uri, records, "KILLED")
    # The second session goes on from a checkpoint of step 1, and does step 2 again.
    write(records, dataclasses.replace(BEGUN, attempt=2, step=1))
    again = {"attempt": 2, "first_step": 2, "losses": (2.0, 1.0), "tokens": 3 * STEP}
    write(records, dataclasses.replace(FIRST, **again))
    follow(uri, records)
    series = history(uri)
    assert series["train_loss"] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert series["tokens"] == [(1, STEP), (2, 2 * STEP), (3, 3 * STEP)]
    assert series["train_hours"][:2] == [(1, 1.5), (2, 2.0)]
    assert (
        series["val_loss"] == [(0, 5.0)]
        and series["val_tokens"] == [(0, 0.0)]
        and series["val_hours"] == [(0, 1 / 3600)]
    )
    assert series["tokens_per_s"][0] == (2, 2 * STEP / 3600) and series["peak_gib"][0] == (2, 1.5)


def test_a_training_resumed_on_another_layout_shows_both(uri: str, tmp_path: Path) -> None:
    records = tmp_path / "training.jsonl"
    client = mlflow.MlflowClient(tracking_uri=uri)

    def shown(plan_in_effect: TrainingPlan) -> Any:
        TrainingRun(plan_in_effect, uri=uri, name="first", training_id="0123", records=records).close("KILLED", 600)
        experiment = client.get_experiment_by_name("tiny")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        return run.data

    def in_effect(tags: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in tags.items() if key.startswith("in_effect.")}

    write(records, dataclasses.replace(BEGUN, layout=DDP.label))
    assert in_effect(shown(plan()).tags) == {"in_effect.layout": DDP.label}
    write(records, dataclasses.replace(BEGUN, attempt=2, step=2, layout=FSDP.label))
    resumed = shown(plan(FSDP))
    assert resumed.params["layout"] == DDP.label, "MLflow keeps the first"
    assert resumed.tags["in_effect.layout"] == FSDP.label and resumed.tags["in_effect.engine"] == "fsdp"
    assert resumed.tags["attempt.1.layout"] == f"{DDP.label}, from step 1"
    assert resumed.tags["attempt.2.layout"] == f"{FSDP.label}, from step 3"
    assert "engine fsdp (begun with ddp)" in resumed.tags["mlflow.note.content"]
    write(records, dataclasses.replace(BEGUN, attempt=3, step=4, layout=DDP.label))
    back = shown(plan())
    assert in_effect(back.tags) == {"in_effect.layout": DDP.label} and "attempt.3.layout" in back.tags
    assert "begun with" not in back.tags["mlflow.note.content"]


def test_a_server_that_is_away_is_said_and_the_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    records = tmp_path / "training.jsonl"
    write(records, BEGUN)
    follow("http://user:secret@127.0.0.1:9", records)
    output = capsys.readouterr().err
    assert "is not up to date" in output and "the training goes on" in output and "secret" not in output


def test_a_store_that_was_away_is_tried_once_more_when_the_training_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mlflow_run, "_RETRY_S", 3600.0)
    records, uri = tmp_path / "training.jsonl", f"sqlite:///{tmp_path}/later/mlflow.db"
    (tmp_path / "later").write_text("in the way of the folder")
    for record in (BEGUN, FIRST):
        write(records, record)
    run = TrainingRun(plan(), uri=uri, name="first", training_id="0123", records=records)
    shown, until_s = "", time.monotonic() + 300
    while "is not up to date" not in shown:
        assert time.monotonic() < until_s
        time.sleep(0.1)
        shown += capsys.readouterr().err
    (tmp_path / "later").unlink()
    run.close("FINISHED", limit_s=600)
    assert len(history(uri)["train_loss"]) == len(FIRST.losses)
