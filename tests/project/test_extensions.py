"""Patches hold what docs/extending.md says that a new one takes: each is counted, applied to a copy, asked for."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from trainers.spec.layout import Layout

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent / "extensions"
PRODUCT = ("platform", "search_spaces", "trainers")
LONGEST = 400
FILES = {"degree": 2, "engine": 4, "axis": 3, "family": 1, "outside": 0}
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


ASKED_OF_A_DEGREE = """
import json
import search_spaces
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from platform.plan.points import points_of
from platform.report.measurement_table import HEADER
from platform.tracking.views import LAYOUT_PARAMS
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.support import standing_refusal

fsdp = {"engine": "fsdp", "zero_stage": 3, "dp_shard": 2, "attention": "sdpa"}
plain, toy, view = Layout(**fsdp), Layout(**fsdp, toy=2), Layout(**fsdp, view=2)
space, recipe = search_spaces.load("llama3_8b"), search_spaces.load("gpt2").recipe
tried = space.candidates(8)[0], points_of(space, space.recipe, find_cluster("8xH100")).layouts
wanted = space.with_changes(["toy=4"]).candidates(8)[0]
points = [(recipe, layout, BatchPoint(micro_batch=4, grad_accum=8)) for layout in (toy, Layout(**fsdp, cp=2))]
print(json.dumps({
    "ids": [layout.id for layout in (plain, toy, view)],
    "world": [layout.world_size for layout in (plain, toy, view)],
    "labels": [toy.degrees, toy.label, view.degrees],
    "coordinates": toy.coordinates(3),
    "tables": ["toy" in names for names in (HEADER, LAYOUT_PARAMS)],
    "tried": [sorted({candidate.layout.toy for candidate in tried[0]}), sorted({layout.toy for layout in tried[1]})],
    "set": sorted({candidate.layout.toy for candidate in wanted}),
    "step_s": predict(from_points(points, find_cluster("4xH100"))).step.total_s.tolist(),
    "refusals": [
        standing_refusal(recipe, layout, layout.world_size)
        for layout in (toy, view, Layout(**fsdp, toy=8), Layout(engine="deepspeed", toy=2))
    ],
}))
"""


@pytest.mark.parametrize("name", FILES)
def test_a_new_one_takes_few_files(name: str) -> None:
    changed = re.findall(r"(?m)^\+\+\+ b/(.+)$", (PATCHES / f"{name}.patch").read_text(encoding="utf-8"))
    files = [path for path in changed if path.startswith(PRODUCT)]
    assert changed and len(files) <= FILES[name], files
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in files if (ROOT / path).exists()}
    assert max(lengths.values(), default=0) <= LONGEST, lengths


def _answer(folder: Path, patches: Iterable[str], script: str) -> Any:
    """Returns what `script` prints where these patches are applied to a copy of the product."""
    for room in PRODUCT:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in patches:
        subprocess.run(["git", "apply", PATCHES / f"{name}.patch"], cwd=folder, check=True)
    run = subprocess.run([sys.executable, "-c", script], cwd=folder, env={}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_they_are_known_everywhere_once_their_patches_are_applied(tmp_path: Path) -> None:
    """Checks an engine that is predicted, an axis that costs time and leaves older identities alone, and a family."""
    answer = _answer(tmp_path, [name for name in FILES if name != "degree"], ASKED)
    plain, slower, toy = answer["step_s"]
    assert 0 < plain < slower and toy > 0
    assert answer["ids"][0] == Layout(engine="fsdp", zero_stage=3, dp_shard=2).id != answer["ids"][1]
    assert "toy 1" in answer["labels"][1] and answer["labels"][2].startswith("Toy")
    assert answer["refusals"] == [None, None, None]
    assert answer["elsewhere"] == "toy is an axis of fsdp, got toy 1 with ddp at stage 0"
    toy_family, llama = answer["parameters"]
    assert toy_family == llama > 0


def test_a_degree_is_known_everywhere_once_its_patch_is_applied(tmp_path: Path) -> None:
    """Checks a degree that shares out tokens, and beside it one that groups the ranks of others."""
    answer = _answer(tmp_path, ["degree"], ASKED_OF_A_DEGREE)
    plain = Layout(engine="fsdp", zero_stage=3, dp_shard=2, attention="sdpa")
    assert answer["ids"][0] == plain.id and len(set(answer["ids"])) == 3
    assert answer["world"] == [2, 4, 2] and answer["coordinates"]["toy"] == answer["coordinates"]["dp_shard"] == 1
    assert answer["labels"] == ["dp 2 toy 2", f"{plain.rules.label(plain)}, toy 2, sync last, sdpa", "dp 2 view 2"]
    assert answer["tables"] == [True, True]
    assert answer["tried"] == [[1, 2], [1, 2]] and answer["set"] == [4]
    # Half a second for each of 12 blocks in each of 8 micro-batches, where context parallelism takes next to none.
    toy_s, context_s = answer["step_s"]
    assert 48 < toy_s < 48 + 2 * context_s < 50
    assert answer["refusals"][:3] == [
        None,
        "view 2 needs a model with experts, gpt2 has none: choose view 1",
        "toy 8 does not divide the 12 heads of gpt2: choose another toy",
    ]
    assert answer["refusals"][3].endswith("engines ddp and fsdp have it, got toy 2: set it to 1")
