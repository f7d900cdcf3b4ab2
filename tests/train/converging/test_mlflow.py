"""The comparison in MLflow: figures on the trainings' runs, a run of its own, once each."""

# pyright: reportPrivateUsage=false

from pathlib import Path
from typing import Any

import mlflow
import pytest
from matplotlib.figure import Figure
from PIL import Image

from platform.train.converging.comparison_runs import log_comparison
from platform.train.converging.curves import Curves
from platform.train.converging.curves_picture import _draw_panel, draw
from tests.train.converging.made_up import COMPARISON_ID, compared, mirrored, trainings
from tests.training.values import RECIPE

pytestmark = pytest.mark.mirror


def runs(uri: str) -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(RECIPE.model.name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_each_training_has_its_figures_and_the_comparison_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    comparison, verdict = mirrored(tmp_path / "compared", uri)
    for _ in range(2):  # a second time nothing is made twice
        look = log_comparison(comparison, verdict, tmp_path)
        assert f"viewStateShareKey=convergence-{COMPARISON_ID}" in look
    all_runs = runs(uri)
    trained = [run for run in all_runs if run.data.tags["role"] == "training"]
    (comparison_run,) = (run for run in all_runs if run.data.tags["role"] == "comparison")
    assert sorted(run.info.run_name for run in trained) == [
        "grad_accum=256, seed 0", "grad_accum=256, seed 1", "plain, seed 0", "plain, seed 1",
    ]  # fmt: skip
    for run in trained:
        marks = verdict.marks[run.data.tags["strategy"]][int(run.data.params["seed"])]
        assert run.data.metrics["tokens_to_loss"] == pytest.approx(marks.tokens_to_loss, rel=1e-3)
        assert run.data.metrics["loss_at_equal_hours"] == pytest.approx(marks.loss_at_equal_hours, rel=1e-3)
        spread = verdict.spread(run.data.tags["strategy"])
        assert run.data.metrics["loss_spread_over_seeds"] == pytest.approx(spread, rel=1e-3)
    assert (
        "grad_accum=256" in comparison_run.data.tags["mlflow.note.content"]
        and comparison_run.data.metrics["target_loss"] > 0
    )


def test_a_server_that_is_away_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    comparison, verdict = compared(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    look = log_comparison(comparison, verdict, tmp_path)
    assert "lacks the comparison" in look and "the same command brings it up to date" in look and "secret" not in look


def test_the_picture_has_every_strategy(tmp_path: Path):
    path = draw(trainings(tmp_path), tmp_path / "picture.png", title="tiny")
    with Image.open(path) as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(1 << 24) or []}
    assert {(15, 118, 110), (180, 83, 9)} <= colors


def test_the_fall_of_the_first_steps_is_left_out_of_the_picture() -> None:
    tokens, losses = tuple(map(float, range(1, 101))), (11.0, 7.0, *(3.0 - 0.01 * step for step in range(98)))
    hours = tuple(token / 100 for token in tokens)
    curves = Curves(tokens=tokens, hours=hours, losses=losses, val_tokens=(), val_hours=(), val_losses=())
    axes = Figure().subplots()
    _draw_panel(axes, {"plain": [curves]}, held_out=False, unit="tokens")
    low, high = axes.get_ylim()
    assert low < min(losses) and max(losses[20:]) < high < 4.0
