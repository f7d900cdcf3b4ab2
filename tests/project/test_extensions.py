"""Patches hold what architecture.md says that a new one takes: each is counted, applied to a copy, asked for."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.spec.layout import Layout

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent / "extensions"
PRODUCT = ("platform", "search_spaces", "trainers")
LONGEST = 400
FILES = {"engine": 4, "axis": 3, "family": 1, "outside": 0}
"""Most files of the product that each patch changes or adds."""
ASKED = """
import json
import search_spaces
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from platform.plan.software import planned_columns
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.support import standing_refusal

recipe, fsdp = search_spaces.load("gpt2").recipe, {"engine": "fsdp", "zero_stage": 3, "dp_shard": 2}
layouts = [Layout(**fsdp), Layout(**fsdp, toy=1), Layout(engine="toy", dp_replicate=2)]
points = [(recipe, layout, BatchPoint.of(recipe, layout, 4)) for layout in layouts]
sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512,
    "intermediate_size": 128, "max_position_embeddings": 64}
try:
    elsewhere = Layout(engine="ddp", dp_replicate=2, toy=1).label
except ValueError as error:
    elsewhere = str(error)
print(json.dumps({
    "ids": [layout.id for layout in layouts],
    "labels": [layout.label for layout in layouts],
    "refusals": [standing_refusal(recipe, layout, 2) for layout in layouts],
    "step_s": predict(planned_columns(points, find_cluster("2xH100"))).step.total_s.tolist(),
    "elsewhere": elsewhere,
    "parameters": [ModelSpec.from_config({"model_type": kind, **sizes}, name="m").num_parameters
        for kind in ("toy", "llama")],
}))
"""


@pytest.mark.parametrize("name", FILES)
def test_a_new_one_takes_few_files(name: str) -> None:
    changed = re.findall(r"(?m)^\+\+\+ b/(.+)$", (PATCHES / f"{name}.patch").read_text(encoding="utf-8"))
    files = [path for path in changed if path.startswith(PRODUCT)]
    assert changed and len(files) <= FILES[name], files
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in files if (ROOT / path).exists()}
    assert max(lengths.values(), default=0) <= LONGEST, lengths


def test_they_are_known_everywhere_once_their_patches_are_applied(tmp_path: Path) -> None:
    """Checks an engine that is predicted, an axis that costs time and leaves older identities alone, and a family."""
    for folder in PRODUCT:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        subprocess.run(["git", "apply", PATCHES / f"{name}.patch"], cwd=tmp_path, check=True)
    run = subprocess.run([sys.executable, "-c", ASKED], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    plain, slower, toy = answer["step_s"]
    assert 0 < plain < slower and toy > 0
    assert answer["ids"][0] == Layout(engine="fsdp", zero_stage=3, dp_shard=2).id != answer["ids"][1]
    assert "toy 1" in answer["labels"][1] and answer["labels"][2].startswith("Toy")
    assert answer["refusals"] == [None, None, None]
    assert answer["elsewhere"] == "toy is an axis of fsdp, got toy 1 with ddp at stage 0"
    toy_family, llama = answer["parameters"]
    assert toy_family == llama > 0
