"""A training crosses from one number of expert-parallel ranks to another, begins with a folder, and is exported."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from tests.contract.family_cases import FAMILIES
from tests.contract.group import run_group
from tests.training.engines_group import manifest, recipe, train
from tests.training.loop_group import Attempt, attempts, job
from tests.training.test_mesh import losses_of
from tests.training.values import RECIPE, plan
from trainers.engines.create import create_engine
from trainers.records import checkpoints
from trainers.records.training import TrainingPlan
from trainers.spec.layout import Layout
from trainers.training import initial_weights
from trainers.training.checkpoint import CheckpointWriter
from trainers.training.export import export

pytestmark = pytest.mark.contract

WHOLE = Layout(engine="fsdp", zero_stage=3, dp_shard=4, attention="sdpa", experts="grouped")
PAIRS = dataclasses.replace(WHOLE, ep=2)
ALL_APART = dataclasses.replace(WHOLE, zero_stage=2, ep=4)
REPLICATED = Layout(engine="ddp", dp_replicate=4, attention="sdpa")
MODEL = dataclasses.replace(FAMILIES["mixtral"], vocab_size=256)


def _plan(layout: Layout) -> TrainingPlan:
    return plan(layout, recipe=dataclasses.replace(RECIPE, model=MODEL))


def test_a_training_crosses_numbers_of_expert_parallel_ranks(tmp_path: Path) -> None:
    ended = run_group(
        attempts,
        [
            Attempt(job=job(tmp_path / "whole", _plan(REPLICATED))),
            Attempt(job=job(tmp_path / "crossed", _plan(PAIRS)), dies_before=5),
            Attempt(job=job(tmp_path / "crossed", _plan(ALL_APART), attempt=2), dies_before=9),
            Attempt(job=job(tmp_path / "crossed", _plan(WHOLE), attempt=3)),
        ],
        4,
    )
    assert ended == ["done", "gone", "gone", "done"]
    for crossed, undivided in zip(losses_of(tmp_path / "crossed"), losses_of(tmp_path / "whole"), strict=True):
        assert crossed == pytest.approx(undivided, rel=1e-4)


def _trained_and_begun(folder: str) -> list[torch.Tensor]:
    """Trains with experts shared out by two ranks, exports, and begins from the export with all and with two."""
    root, tiny, device = Path(folder), dataclasses.replace(recipe(), model=MODEL), torch.device("cpu")
    tokens = torch.arange(2 * tiny.seq_len).reshape(2, -1) % MODEL.vocab_size
    layouts = [dataclasses.replace(WHOLE, dp_shard=2, ep=ep) for ep in (2, 1, 2)]
    engine = create_engine(tiny, layouts[0], device)
    train(engine, tiny, layouts[0], 0)
    writer = CheckpointWriter(root / "checkpoints", keep=1, is_current=lambda: True)
    writer.save(engine, manifest(tiny, engine))
    writer.finish()
    logits = [engine.logits(tokens).clone()]
    engine.close()
    newest: Any = checkpoints.newest(root / "checkpoints")
    if dist.get_rank() == 0:
        export(newest, tiny, root / "model")
    dist.barrier()
    for layout in layouts[1:]:
        begun = create_engine(tiny, layout, device)
        initial_weights.load(begun, root / "model")
        logits.append(begun.logits(tokens).clone())
        begun.close()
    return logits


def test_an_export_is_whole_and_others_begin_with_it(tmp_path: Path) -> None:
    trained, *begun = run_group(_trained_and_begun, str(tmp_path), 2)
    for logits in begun:
        torch.testing.assert_close(logits, trained, rtol=1e-6, atol=1e-6)
    module = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    tokens = torch.arange(2 * recipe().seq_len).reshape(2, -1) % MODEL.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(module(tokens).logits, trained, rtol=1e-5, atol=1e-5)
