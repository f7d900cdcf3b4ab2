"""A training crosses from one number of expert-parallel ranks to another, begins with a folder, and is exported."""

# pyright: reportPrivateUsage=false

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from platform.train.mlflow_run import experts_of
from tests.contract.family_cases import FAMILIES
from tests.contract.group import run_group
from tests.training.engines_group import manifest, recipe, train
from tests.training.loop_group import Attempt, attempts, job
from tests.training.test_mesh import losses_of
from tests.training.values import RECIPE, plan
from trainers.engines.create import create_engine
from trainers.records import checkpoints
from trainers.records.training import TrainingPlan, Validated
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import Reader, without_redone
from trainers.spec.layout import Layout
from trainers.training import initial_weights, validation
from trainers.training.checkpoint import CheckpointWriter
from trainers.training.export import export
from trainers.training.validation import HeldOut

pytestmark = pytest.mark.contract

WHOLE = Layout(engine="fsdp", zero_stage=3, dp_shard=4, attention="sdpa", experts="grouped")
PAIRS = dataclasses.replace(WHOLE, ep=2)
ALL_APART = dataclasses.replace(WHOLE, zero_stage=2, ep=4)
REPLICATED = Layout(engine="ddp", dp_replicate=4, attention="sdpa")
MODEL = dataclasses.replace(FAMILIES["mixtral"], vocab_size=256)


def _plan(layout: Layout) -> TrainingPlan:
    """Returns a plan whose routers have biases, which a checkpoint carries along."""
    return plan(layout, recipe=dataclasses.replace(RECIPE, model=MODEL, balance_loss="bias", balance_rate=0.05))


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
    experts = [_experts_of(tmp_path / name) for name in ("crossed", "whole")]
    assert experts[0] == experts[1] and len(experts[0]) == 4
    for fullest, empty in experts[0]:
        assert len(fullest) == len(empty) == MODEL.num_layers
        assert all(1 <= ratio <= MODEL.num_experts for ratio in fullest)


def _experts_of(folder: Path) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """Returns what each held-out loss says of its experts."""
    records = without_redone(Reader(folder / RECORDS).read())
    return [(record.fullest, record.empty) for record in records if isinstance(record, Validated)]


def test_a_summary_of_ranks_counts_each_block_once() -> None:
    held_out = HeldOut(loss=1.0, tokens_of_experts=((3, 1, 0, 0), (1, 1, 1, 1)))
    assert held_out.fullest == (3.0, 1.0) and held_out.empty == (2, 0)
    assert validation._summed([{1: [1, 2]}, {0: [4, 0]}, {1: [0, 5]}]) == ((4, 0), (1, 7))
    assert validation._summed([{}, {}]) == ()
    record = Validated(attempt=1, step=1, tokens=8, loss=1.0, train_s=1.0, wall_s=1.0)
    assert experts_of(record) == {}
    series = experts_of(dataclasses.replace(record, fullest=held_out.fullest, empty=held_out.empty))
    assert (series["experts_max_over_mean"], series["experts_empty"]) == (3.0, 2.0)
    assert (series["experts_max_over_mean/block_001"], series["experts_empty/block_000"]) == (1.0, 2.0)


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
