"""A new kind of block takes two files of the product: what it is, and what it costs (docs/extending.md)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).parent / "toy_kind"
PREDICTS = """
import json

from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import peak_parts
from platform.cost_model.lower_bound import lower_bound
from platform.cost_model.step_time import step_time
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

figures = {}
for doubled in (0, 4, 8):
    model = ModelSpec(
        name="toy", architecture="gpt2", num_layers=8, hidden_size=1024, num_heads=16, vocab_size=50304,
        max_positions=1024, config=json.dumps({"doubled_layers": doubled}),
    )
    recipe, layout = Recipe(model=model, seq_len=1024, global_batch=8), Layout(engine="ddp", attention="sdpa")
    batch = BatchPoint(micro_batch=8, grad_accum=1)
    columns = from_points([(recipe, layout, batch)], find_cluster("1xH100"))
    figures[doubled] = [
        model.num_parameters, model.flops_per_token(1024), step_time(columns).compute_s.item(),
        peak_parts(columns).activations.item(), lower_bound(recipe, layout, batch).states_gib,
    ]
print(json.dumps(figures))
"""


def test_a_toy_kind_of_block_takes_two_files(tmp_path: Path) -> None:
    """Checks that the kind's parameters, FLOPs, seconds and bytes count for as many blocks as are of it."""
    files = list(TOY.rglob("*.py"))
    assert len(files) == 2 and not any((ROOT / path.relative_to(TOY)).exists() for path in files)
    for room in ("platform", "search_spaces", "trainers"):
        shutil.copytree(ROOT / room, tmp_path / room)
    shutil.copytree(TOY, tmp_path, dirs_exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", PREDICTS], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    none, half, every = json.loads(run.stdout).values()
    matrices = 2 * 1024 * 4096
    assert every[0] - none[0] == 8 * matrices and every[1] - none[1] == 6 * 8 * matrices
    for dense, mixed, doubled in zip(none[:-1], half, every, strict=False):
        assert dense < mixed < doubled and mixed == pytest.approx((dense + doubled) / 2, rel=0.02)
    # What is certain to be held counts every block as the smallest.
    assert none[-1] == half[-1] < every[-1]
