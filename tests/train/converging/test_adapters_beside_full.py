"""A comparison of adapters with the whole model, both from one folder, on two CPU workers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from platform.train.initial_model import recipe_of
from platform.train.training_folder import TrainingFolder
from tests.train.converging.test_converge import converge
from tests.training.layout_file import write_layout
from tests.training.values import DDP
from trainers import data
from trainers.records.training import Validated
from trainers.spec.batch import BatchPoint
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED

pytestmark = [pytest.mark.ray, pytest.mark.mirror, pytest.mark.heavy]


def _write_model(folder: Path) -> Recipe:
    """Writes a small model that has seen some text; returns the recipe of its fine-tuning."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64,
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    fields: dict[str, Any] = {"data": INCLUDED, "data_order": "shuffled", "compute_precision": "fp32"}
    recipe = dataclasses.replace(recipe_of(str(folder)), seq_len=64, global_batch=8, learning_rate=1e-3, **fields)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    source = data.source(dataclasses.replace(recipe, seed=1))
    for step in range(150):
        tokens = torch.from_numpy(source.sequences(step, range(8)))[:, :-1]
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return recipe


def test_adapters_train_beside_the_whole_model_from_one_folder(tmp_path: Path) -> None:
    recipe = _write_model(tmp_path / "model")
    full = write_layout(tmp_path / "full.json", DDP, recipe=recipe, batch=BatchPoint(micro_batch=4, grad_accum=1))
    adapters = "adapter=lora_8,learning_rate=5e-3"
    arguments = [str(full), adapters, "--start-from", str(tmp_path / "model")]
    arguments += ["--steps", "150", "--seeds", "2", "--rates", "2", "--val-tokens", "1280"]
    completed = converge(tmp_path, *arguments)
    assert completed.returncode == 0, completed.stderr[-3000:]
    print(completed.stdout, completed.stderr)

    again = converge(tmp_path, *arguments, "--json")
    assert again.returncode == 0, again.stderr[-3000:]
    report = json.loads(again.stdout)
    assert all(line in completed.stdout.splitlines() for line in report["answer"])
    assert report == json.loads((tmp_path / "compared" / "convergence.json").read_text())
    assert set(report["strategies"]) == {"full", adapters} and not report["left_out"]
    rates = {name: (of["learning_rate"], of["learning_rate_source"]) for name, of in report["strategies"].items()}
    assert rates[adapters] == (5e-3, "as stated")
    assert rates["full"][1] == "the best of 2 in 30 steps each"

    first_losses: list[float] = []
    for name in ("full", "adapter=lora_8_learning_rate=5e-3"):
        for seed in (0, 1):
            training = TrainingFolder(tmp_path / "compared" / name / f"seed-{seed}")
            plan, records = training.plan(), training.read_records()
            losses = [record.loss for record in records if isinstance(record, Validated)]
            assert plan is not None and plan.initial_weights == str(tmp_path / "model")
            assert (plan.recipe.adapter == "none") == (name == "full")
            assert losses[-1] < losses[0] < 4.5, "the folder's model has seen text"
            first_losses.append(losses[0])
    assert first_losses == pytest.approx([first_losses[0]] * 4, rel=1e-5), "all begin with the same weights"

    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    refused = converge(tmp_path, *arguments)
    assert refused.returncode == 2 and "began with other weights" in refused.stderr
