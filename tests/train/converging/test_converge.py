"""The command on two CPU workers: trains with the parts of `platform.train`, compares, and records all of it in
MLflow.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from PIL import Image

from platform.train.converging.curves import read_curves
from tests import needs
from tests.tracking.browser import page
from tests.tracking.pages import CURVES, WIDTH, charts, curves, opened, served
from tests.training.environment import ENVIRONMENT
from tests.training.layout_file import write_layout
from tests.training.values import DDP, FSDP, MODEL, RECIPE
from trainers.spec.batch import BatchPoint

pytestmark = [pytest.mark.ray, pytest.mark.mirror, pytest.mark.heavy]

ROOT = Path(__file__).parents[3]


def converge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in `folder`, with studies and a Ray of its own."""
    command = [sys.executable, "-m", "platform.converge", *arguments, "--out", str(folder / "compared")]
    command += ["--studies", str(folder), "--address", "local"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def runs(folder: Path) -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name(RECIPE.model.name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_two_engines_with_a_rate_that_was_tried(tmp_path: Path):
    target = write_layout(tmp_path / "ddp.json", DDP)
    arguments = [
        str(target),
        "engine=fsdp,zero_stage=3",
        "--steps",
        "150",
        "--rates",
        "1",
        "--val-tokens",
        "320",
        "--json",
    ]
    completed = converge(tmp_path, *arguments)
    assert completed.returncode == 0, completed.stderr[-3000:]
    report = json.loads(completed.stdout)
    assert report == json.loads((tmp_path / "compared" / "convergence.json").read_text())
    ddp, fsdp = (report["strategies"][name] for name in ("ddp", "engine=fsdp,zero_stage=3"))
    # One mathematics has one rate, found by a training that Tune ran.
    assert ddp["learning_rate"] == fsdp["learning_rate"] == RECIPE.learning_rate
    assert ddp["learning_rate_source"] == "the best of 1 in 30 steps each"
    # The engines train the same, in their own time.
    losses = [strategy["seeds"]["0"]["loss_at_equal_tokens"] for strategy in (ddp, fsdp)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3) and losses[0] < 5.0
    assert all(strategy["seeds"]["0"]["hours_to_loss"] > 0 for strategy in (ddp, fsdp))
    with Image.open(tmp_path / "compared" / "convergence.png") as picture:
        assert min(picture.size) > 500
    trained = {run.data.tags["strategy"]: run for run in runs(tmp_path) if run.data.tags["role"] == "training"}
    assert set(trained) == set(report["strategies"])
    metric_names = {"tokens_to_loss", "hours_to_loss", "loss_at_equal_tokens", "loss_at_equal_hours"}
    series = {
        "train_loss",
        "val_loss",
        "grad_norm",
        "learning_rate",
        "tokens",
        "train_hours",
        "tokens_per_s",
        "peak_gib",
    }
    assert all(metric_names | series <= run.data.metrics.keys() for run in trained.values())
    # The same command has nothing left to train, and says the same.
    again = converge(tmp_path, *arguments)
    assert again.returncode == 0 and json.loads(again.stdout) == report
    assert len(runs(tmp_path)) == 3


def test_four_engines_learn_the_same_within_the_noise_of_seeds(tmp_path: Path):
    folder = Path(os.environ.get("CONVERGENCE_FOLDER", tmp_path))
    model = dataclasses.replace(MODEL, num_layers=2, hidden_size=64)
    recipe = dataclasses.replace(RECIPE, model=model, seq_len=64, global_batch=16, learning_rate=3e-3)
    target = write_layout(folder / "ddp.json", DDP, recipe=recipe, batch=BatchPoint(micro_batch=8, grad_accum=1))
    others = ["engine=fsdp,zero_stage=3", "engine=deepspeed,zero_stage=1", "engine=deepspeed,zero_stage=3"]
    steps, seeds = 300, 3
    arguments = [str(target), *others, "--steps", str(steps), "--seeds", str(seeds), "--rates", "0", "--json"]
    completed = converge(folder, *arguments)
    assert completed.returncode == 0, completed.stderr[-3000:]
    print(*json.loads(completed.stdout)["answer"], sep="\n")
    parts = [re.sub(r"[^A-Za-z0-9=._-]+", "_", name) for name in ("ddp", *others)]
    read = [[read_curves(folder / "compared" / name / f"seed-{seed}") for seed in range(seeds)] for name in parts]
    losses = np.array(
        [[seed_curves.losses for seed_curves in engine_curves] for engine_curves in read]
    )  # engine, seed, step
    held_out = np.array([[seed_curves.val_losses[-1] for seed_curves in engine_curves] for engine_curves in read])
    noise, apart = losses.std(axis=1, ddof=1).mean(axis=0), np.abs(losses - losses[0])
    print("engine | difference from DDP in 20 steps | over 300 steps of each seed | held-out loss, mean and deviation")
    for name, of_seeds, val_losses in zip(parts, apart, held_out, strict=True):
        figures = (of_seeds[:, :20].max(), *of_seeds.mean(axis=1), val_losses.mean(), val_losses.std(ddof=1))
        print(name, *(f"{figure:.3g}" for figure in figures), sep=" | ")
    print(f"noise of seeds: {noise.min():.3g} to {noise.max():.3g}, mean {noise.mean():.3g}")
    assert losses.shape == (4, seeds, steps) and losses[:, :, -20:].mean() < 0.7 * losses[:, :, 0].mean()
    # One mathematics: with every seed the first steps agree to rounding.
    assert apart[:, :, :20].max() < 1e-5
    # An unstable training makes rounding grow, as one seed of three does here; other seeds change a loss by more.
    assert (np.median(apart.mean(axis=2), axis=1) < 0.01 * noise.mean()).all()
    assert (apart.mean(axis=(1, 2)) < 0.5 * noise.mean()).all()
    assert (np.abs(held_out.mean(axis=1) - held_out[0].mean()) < held_out[0].std(ddof=1)).all()


def test_four_strategies_in_one_figure(tmp_path: Path):
    program = needs.browser()
    folder = Path(os.environ.get("CONVERGENCE_FOLDER", tmp_path))
    recipe = dataclasses.replace(RECIPE, global_batch=16)
    batch = BatchPoint(micro_batch=8, grad_accum=1)
    target = write_layout(folder / "fsdp.json", FSDP, recipe=recipe, batch=batch)
    others = ["engine=deepspeed,zero_stage=2", "engine=ddp,optimizer=adafactor", "micro_batch=8,grad_accum=32"]
    completed = converge(
        folder, str(target), *others, "--steps", "960", "--seeds", "2", "--rates", "3", "--val-tokens", "640", "--json"
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    report = json.loads(completed.stdout)
    assert set(report["strategies"]) | set(report["left_out"]) == {"fsdp", *others} and not report["left_out"]
    for strategy in report["strategies"].values():
        assert len(strategy["seeds"]) == 2 and strategy["spread"] is not None
        assert all(of_seed["tokens_to_loss"] is not None for of_seed in strategy["seeds"].values())
    # FSDP and DeepSpeed train the same recipe: no further apart than seeds are.
    fsdp, deepspeed = (report["strategies"][name]["seeds"]["0"]["loss_at_equal_tokens"] for name in ("fsdp", others[0]))
    assert abs(fsdp - deepspeed) < max(0.01, 3 * report["strategies"]["fsdp"]["spread"])
    words = "\n".join(report["answer"])
    assert f"{others[-1]}:" in words and "times" in words and "95 % intervals over 2 seeds" in words
    with (
        served("MLflow:" + completed.stderr.split("MLflow:")[-1].rstrip(), folder) as addresses,
        page(program, folder / "profile", width=WIDTH, height=1050) as view,
    ):
        opened(view, addresses["losses"])
        charts(view, 4)
        # Both losses against tokens and hours: in each a curve a strategy, seeds grouped, with both edges of its band.
        view.wait_for(f"({CURVES}).every(each => each.length == {4 * 3})")
        assert len(curves(view)) == 4
        view.picture(folder / "view.png")
