"""Tests of the objections to a winner that the first steps of its training raise, from made-up records, and a real run
of `search --safe`.
"""

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform.train.safety import objection
from tests.training.environment import ENVIRONMENT
from trainers.records.training import Record, Saved, Steps, Validated

ROOT = Path(__file__).parents[2]


def steps(first: int, peak_gib: float, loss: float = 2.0) -> Steps:
    return Steps(
        attempt=1, first_step=first, losses=(loss,) * 10, grad_norms=(1.0,) * 10, learning_rates=(1e-3,) * 10,
        tokens=10 * first, tokens_per_step=10, train_s=float(first), steps_s=1.0, data_s=0.0, peak_gib=peak_gib,
    )  # fmt: skip


HELD_OUT = Validated(attempt=1, step=0, tokens=0, loss=3.0, train_s=0.0, wall_s=1.0)
SAVED = Saved(attempt=1, step=0, name="step-0-1", stall_s=0.1, background_s=1.0, gib=0.5)
STEPS = [steps(first, 1.0) for first in range(1, 60, 10)]
WELL: list[Record] = [HELD_OUT, SAVED, *STEPS]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (WELL, ""),
        ([SAVED, *STEPS], "no held-out loss"),
        ([HELD_OUT, *STEPS], "no checkpoint"),
        ([*WELL, steps(61, 1.0, math.nan)], "not a number"),
        ([dataclasses.replace(HELD_OUT, loss=math.inf), *WELL], "not a number"),
        ([HELD_OUT, SAVED, *(steps(first, 1 + first / 100) for first in range(1, 60, 10))], "Memory grows"),
    ],
)
def test_each_reason_is_told(records: list[Record], reason: str):
    sentence = objection(records, memory_counts=True)
    assert reason in sentence and bool(sentence) == bool(reason)


def search(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    """Runs a search for the fastest way to train a small GPT-2 on two CPU workers, with `--safe`."""
    command = [sys.executable, "-m", "platform.search", *argv, "--safe", "--studies", str(folder), "--address", "local"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
def test_the_winner_of_a_search_is_trained_for_fifty_steps(tmp_path: Path):
    completed = search(tmp_path, "gpt2", "--name", "first", "--set", "engine=ddp", "--repeats", "0")
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert "The winner is safe to train: 51 steps (the memory of CPU workers is not judged)" in completed.stderr
    assert not (tmp_path / "first" / "safe").exists()
    # A finished study's winner is tried too; and one whose checkpoint cannot be written is refused.
    (tmp_path / "first" / "safe").write_text("in the way")
    again = search(tmp_path, "--resume", "first")
    assert again.returncode == 1 and "The winner is not safe to train: " in again.stderr, again.stderr[-3000:]
