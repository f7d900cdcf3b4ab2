"""The command that a search's end prints trains its winner as it is printed, and is not printed where it would not."""

import dataclasses
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

import platform.train.__main__ as train  # pyright takes `from platform import` for the standard module
from platform.report.endings import next_trainings
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from platform.train.training_session import is_plannable, opened
from tests.samples import CONDITIONS, header, measurement
from trainers.records.journal import End, Measured
from trainers.records.measurement import Measurement
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED
from trainers.spec.workload import Workload

ROOT = Path(__file__).parents[2]
CPUS = Cluster(device_kind="cpu", device="a CPU worker", device_memory_gib=4.0, num_nodes=1, devices_per_node=1)
MODEL = ModelSpec(
    name="tiny", architecture="gpt2", num_layers=1, hidden_size=32, num_heads=2, vocab_size=256, max_positions=64
)
RECIPE = Recipe(model=MODEL, seq_len=32, global_batch=4, compute_precision="fp32", data=INCLUDED)
WON = measurement(recipe=RECIPE, on=Layout(engine="ddp", dp_replicate=1), micro_batch=2)
TOKENS = 640.0


def _study(studies: Path, *measured: Measurement) -> Path:
    studies.mkdir(exist_ok=True)
    recipes = tuple({point.recipe.id: point.recipe for point in measured}.values())
    with Study.create(studies, "small") as study:
        study.record(dataclasses.replace(header("small"), recipes=recipes, cluster=CPUS, tokens=TOKENS))
        for point in measured:
            study.record(Measured(measurement=point))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
    return studies / "small"


def _sentences(study: Path, address: str | None = None) -> list[str]:
    trainings = next_trainings(StudyResult.of(read(study)[0]), study, address)
    assert all(is_plannable(study, training.recipe, training.tokens, CPUS) for training in trainings)
    return [training.sentence for training in trainings]


def _command(study: Path) -> str:
    """Returns the command that the end of the study's search prints."""
    (sentence,) = _sentences(study)
    assert sentence.startswith("Train it: python -m platform.train small --studies ")
    assert sentence.endswith(" --tokens 640 (--data trains on token files of your own)")
    return sentence.removeprefix("Train it: ").rpartition(" (--data")[0]


def test_the_printed_command_plans_a_training_of_the_winner(tmp_path: Path) -> None:
    study = _study(tmp_path / "studies of a (team)", WON)
    _, _, _, *words = shlex.split(_command(study))
    with opened(train.PARSER.read(words)) as training:
        (phase,) = training.plan.phases
        assert (training.plan.recipe, phase.end_tokens, training.is_complete) == (RECIPE, TOKENS, False)
        assert (phase.layout, phase.batch) == (WON.layout, WON.batch)
        assert training.folder.path.is_relative_to(study / "training")


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.mirror
def test_the_printed_command_trains_the_winner(tmp_path: Path) -> None:
    study = _study(tmp_path / "studies of a (team)", WON)
    command = _command(study).replace("python", ".venv/bin/python", 1)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    completed = subprocess.run(
        f"{command} --json", shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    trained = json.loads(completed.stdout)
    assert trained["complete"] and trained["tokens"] == TOKENS
    assert Path(trained["checkpoint"]).is_relative_to(study / "training")


def test_the_command_names_recipe_cluster_and_a_miniature_s_steps(tmp_path: Path) -> None:
    other = dataclasses.replace(RECIPE, seq_len=16)
    both = _sentences(_study(tmp_path / "two", WON, dataclasses.replace(WON, recipe=other)), "10.0.0.1:6379")
    assert len(both) == 2
    for sentence, recipe in zip(both, (RECIPE, other), strict=True):
        assert f" --recipe {recipe.id} --address 10.0.0.1:6379 (" in sentence and f"({recipe.label})" in sentence
    small = dataclasses.replace(RECIPE, model=dataclasses.replace(MODEL, miniature_of="large"))
    (rehearsal,) = _sentences(_study(tmp_path / "small", dataclasses.replace(WON, recipe=small)))
    assert rehearsal.startswith("Rehearse the training with the miniature, in 100 steps: python -m platform.train ")
    assert "--tokens 12.8k (" in rehearsal, "100 steps of 128 tokens"


def test_nothing_is_printed_where_no_training_can_run(tmp_path: Path) -> None:
    workload = Workload(name="mine", command=("python", "train.py"), folder=str(tmp_path), digest="0")
    own = dataclasses.replace(RECIPE, model=None, workload=workload)
    assert not _sentences(_study(tmp_path / "own", dataclasses.replace(WON, recipe=own)))
    lacking = dataclasses.replace(CONDITIONS, engine_lacks=("logits and loss",))
    assert not _sentences(_study(tmp_path / "lacking", dataclasses.replace(WON, conditions=lacking)))
    study = _study(tmp_path / "large", WON)
    none = dataclasses.replace(CPUS, device_memory_gib=1e-6)
    assert not is_plannable(study, RECIPE.id, 640, none) and is_plannable(study, RECIPE.id, 640, CPUS)
