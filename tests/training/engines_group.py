"""Every rank's work in the tests of checkpoints: train, save, load into another engine, train on."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.contract import whole_tensors
from trainers import data
from trainers.engines.create import create_engine
from trainers.engines.stepper import Engine
from trainers.marks.step import Unmarked
from trainers.measuring.timed_steps import losses_of
from trainers.records import checkpoints
from trainers.records.checkpoint_manifest import FORMAT, Manifest
from trainers.records.training import LearningRateSchedule
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.training import checkpoint_reading
from trainers.training.base_digest import base_digest
from trainers.training.checkpoint import CheckpointWriter

GLOBAL_BATCH = 4
STEPS = 3
MODEL = ModelSpec(name="tiny", architecture="bloom", num_layers=2, hidden_size=20, num_heads=4, vocab_size=97)


def recipe(**fields: Any) -> Recipe:
    """Returns a recipe with a model whose parameters no number of ranks divides evenly."""
    defaults: dict[str, Any] = {"compute_precision": "fp32", "learning_rate": 1e-2}
    return Recipe(model=MODEL, seq_len=12, global_batch=GLOBAL_BATCH, **{**defaults, **fields})


def _model(architecture: str, **fields: Any) -> ModelSpec:
    return ModelSpec(
        name=architecture, architecture=architecture, num_layers=2, hidden_size=20, num_heads=2, vocab_size=97, **fields
    )


FP_RECIPES = {
    "bloom": recipe(),
    "gpt2": dataclasses.replace(recipe(), model=_model("gpt2", max_positions=32)),
    "llama": dataclasses.replace(recipe(), model=_model("llama", ffn_size=40, num_kv_heads=1, max_positions=32)),
}
"""One recipe per kind of model: tied or separate head, transposed or plain weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hop:
    """A checkpoint of one layout from which other layouts continue."""

    recipe: Recipe
    saved_by: Layout | None
    """The layout that saves; None for the checkpoint already in `folder`."""
    loaded_by: tuple[Layout, ...]
    folder: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curves:
    """Losses after the checkpoint: of the engine that saved it, and of those that continued from it."""

    undisturbed: list[float]
    continued: list[list[float]]
    weights: list[dict[str, torch.Tensor]]
    """The weights of each continuing engine after it loaded the checkpoint."""


def hops(planned_hops: list[Hop]) -> list[Curves]:
    """Runs the hops one after the other and returns the curves of each."""
    return [_play(hop) for hop in planned_hops]


def _play(hop: Hop) -> Curves:
    folder, undisturbed = Path(hop.folder), []
    if hop.saved_by is not None:
        engine = create_engine(hop.recipe, hop.saved_by, torch.device("cpu"))
        train(engine, hop.recipe, hop.saved_by, 0)
        writer = CheckpointWriter(folder, keep=2, is_current=lambda: True)
        writer.save(engine, manifest(hop.recipe, engine))
        undisturbed = train(engine, hop.recipe, hop.saved_by, STEPS)  # while the checkpoint is being written
        written = writer.finish()
        assert written is not None and not written.error, written
        engine.close()
    continued: list[list[float]] = []
    loaded: list[dict[str, torch.Tensor]] = []
    newest = checkpoints.newest(folder)
    assert newest is not None
    for layout in hop.loaded_by:
        engine = create_engine(hop.recipe, layout, torch.device("cpu"))
        checkpoint_reading.load(engine, newest)
        loaded.append(whole_tensors.weights(engine))
        continued.append(train(engine, hop.recipe, layout, STEPS))
        engine.close()
    return Curves(undisturbed=undisturbed, continued=continued, weights=loaded)


def train(engine: Engine, trained_recipe: Recipe, layout: Layout, first: int) -> list[float]:
    """Trains from step `first` with two micro-steps per step, and returns the losses."""
    batch = BatchPoint.of(trained_recipe, layout, max(1, GLOBAL_BATCH // (2 * layout.data_parallel)))
    source, rank = data.source(trained_recipe), layout.data_parallel_rank(dist.get_rank())
    losses: list[float] = []
    for step in range(first, first + STEPS):
        indices_by_micro_step = [
            data.sample_indices(batch, data_parallel=layout.data_parallel, rank=rank, micro_step=k)
            for k in range(batch.grad_accum)
        ]
        engine.set_learning_rate(trained_recipe.learning_rate)
        result = engine.step(
            [torch.from_numpy(source.sequences(step, indices)) for indices in indices_by_micro_step], Unmarked()
        )
        losses += losses_of([result], _gather)
    return losses


def manifest(trained_recipe: Recipe, engine: Engine) -> Manifest:
    """Returns the manifest of a checkpoint after the first steps."""
    counters = engine.counters()
    return Manifest(
        format=FORMAT,
        recipe_id=trained_recipe.id,
        step=STEPS,
        tokens=STEPS * trained_recipe.tokens_per_step,
        samples=STEPS * GLOBAL_BATCH,
        epoch=0,
        sample=STEPS * GLOBAL_BATCH,
        optimizer_step=counters.optimizer_step,
        loss_scale=counters.loss_scale,
        loss_scale_steps=counters.loss_scale_steps,
        learning_rate=trained_recipe.learning_rate,
        lr_schedule=LearningRateSchedule(kind="constant", tokens=10**6),
        train_s=0.0,
        layout="",
        attempt=1,
        base=base_digest(engine.training_state()),
    )


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
