"""The callback that a user copies beside a script with transformers' Trainer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from trainers.commands.processes import STEPS
from trainers.commands.step_lines import StepLines
from trainers.commands.steps import StepReader


class _Model(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids


def _steps_of(folder: Path, losses: list[float], **arguments: Any) -> list[Any]:
    """Returns the steps that a training of two micro-steps a step tells, by the calls that a Trainer makes."""
    path = folder / "steps.jsonl"
    path.touch()
    options: Any = TrainingArguments(output_dir=str(folder), report_to="none", use_cpu=True, **arguments)
    calls = {"args": options, "state": TrainerState(), "control": TrainerControl()}
    model, callback = _Model(), StepLines()
    callback.on_train_begin(**calls, model=model)
    for loss in losses:
        model.train()(torch.zeros(3, 8))
        model(input_ids=torch.zeros(3, 8))
        model.eval()(torch.zeros(5, 8))  # an evaluation between
        callback.on_step_end(**calls)
        if options.logging_steps == 1:
            callback.on_log(**calls, logs={"loss": loss, "learning_rate": 1e-4})
    totals = {"train_runtime": 1e6, "train_samples_per_second": 1e9, "train_loss": 77.0, "total_flos": 1.0}
    callback.on_log(**calls, logs=totals)
    return StepReader(file=path, log=path, step_line="").new()


@pytest.mark.parametrize("logging_steps", [1, 10])
def test_each_step_is_told_and_totals_are_not(
    logging_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that `train_runtime`, which holds the start, is never used, nor the tokens of an evaluation."""
    monkeypatch.setenv(STEPS, str(tmp_path / "steps.jsonl"))
    steps = _steps_of(tmp_path, [3.0, 2.5, 2.25], logging_steps=logging_steps)
    assert [step.tokens for step in steps] == [48, 48, 48]
    assert [step.loss for step in steps] == ([3.0, 2.5, 2.25] if logging_steps == 1 else [None] * 3)
    assert all(0 < step.seconds < 60 for step in steps)


def test_without_a_search_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEPS, raising=False)
    assert _steps_of(tmp_path, [3.0], logging_steps=1) == []


def test_other_ranks_tell_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS, str(tmp_path / "steps.jsonl"))
    callback = StepLines()
    monkeypatch.setenv("RANK", "1")
    arguments = SimpleNamespace(world_size=2, logging_steps=10)
    callback.on_train_begin(arguments, None, None, model=_Model())
    for _ in range(3):
        callback.on_step_end(arguments, None, None)
    assert not (tmp_path / "steps.jsonl").exists()
