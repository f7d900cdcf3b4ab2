"""A training crosses from one split of the model to another, by tensor, pipeline and context parallelism."""

import dataclasses
from pathlib import Path

import pytest

from tests.contract.group import run_group
from tests.training.loop_group import Attempt, attempts, job
from tests.training.values import RECIPE, plan
from trainers.records.training import Begun, Record, Steps, TrainingPlan, Validated
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import Reader, without_redone
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract

RECIPE_OF_TWO_BLOCKS = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, num_layers=2))
UNDIVIDED = Layout(engine="ddp", dp_replicate=4)
TENSOR = Layout(engine="fsdp", zero_stage=3, dp_shard=2, tp=2)
PIPELINE = Layout(engine="ddp", dp_replicate=2, pp=2)
CONTEXT = Layout(engine="fsdp", zero_stage=3, dp_shard=2, cp=2, attention="sdpa")


def _plan(layout: Layout) -> TrainingPlan:
    return plan(layout, recipe=RECIPE_OF_TWO_BLOCKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> list[str]:
    """Returns why each attempt ended; all are played in one group of four ranks, with a checkpoint every four steps."""
    return run_group(
        attempts,
        [
            Attempt(job=job(folder / "whole", _plan(UNDIVIDED))),
            Attempt(job=job(folder / "split", _plan(TENSOR)), dies_before=5),
            Attempt(job=job(folder / "split", _plan(PIPELINE), attempt=2), dies_before=9),
            Attempt(job=job(folder / "split", _plan(CONTEXT), attempt=3), dies_before=11),
            Attempt(job=job(folder / "split", _plan(UNDIVIDED), attempt=4)),
        ],
        4,
    )


def _records(folder: Path) -> list[Record]:
    return without_redone(Reader(folder / RECORDS).read())


def test_checkpoints_cross_every_split_of_the_model(folder: Path, outcomes: list[str]):
    assert outcomes == ["done", "gone", "gone", "gone", "done"]
    begun = [(record.step, record.layout) for record in _records(folder / "split") if isinstance(record, Begun)]
    layouts = (TENSOR, PIPELINE, CONTEXT, UNDIVIDED)
    assert begun == list(zip((0, 4, 8, 8), (layout.label for layout in layouts), strict=True))


def test_losses_and_held_out_losses_are_those_of_the_whole_model(folder: Path, outcomes: list[str]):
    undivided, split = losses_of(folder / "whole"), losses_of(folder / "split")
    assert [len(curve) for curve in undivided] == [12, 12, 4]
    for curve, expected in zip(split, undivided, strict=True):
        assert curve == pytest.approx(expected, rel=1e-4)


def losses_of(folder: Path) -> list[list[float]]:
    """Returns a training's losses, gradient norms and held-out losses, those of steps done twice once."""
    return [
        [value for record in _records(folder) if isinstance(record, kind) for value in _values(record, name)]
        for kind, name in ((Steps, "losses"), (Steps, "grad_norms"), (Validated, "loss"))
    ]


def _values(record: Record, name: str) -> tuple[float, ...]:
    value = getattr(record, name)
    return value if isinstance(value, tuple) else (value,)
