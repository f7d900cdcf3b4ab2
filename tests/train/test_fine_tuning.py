"""The commands of docs/fine-tuning.md, run as they stand there: from chats to a folder that answers."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from platform.train.training_folder import TrainingFolder, steps_of
from scripts.tiny_chat import answer
from tests.train.test_first_training import RESUMED, ROOT
from tests.training.environment import ENVIRONMENT
from trainers.records.training import Validated

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

PAGE = ROOT / "docs" / "fine-tuning.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder in which all commands ran, one after the other, in one shell; an unresolved search is
    resumed.
    """
    folder = tmp_path_factory.mktemp("tuned")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    lines = [line.removeprefix("    ") for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    resumed = RESUMED.replace("first", "tuned")
    lines = [f"{line} || {resumed}" if line.startswith("python -m platform.search") else line for line in lines]
    with (folder / "output").open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join(["set -e", *lines])],
            cwd=folder,
            env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert shell.wait(timeout=1200) == 0, (folder / "output").read_text()[-5000:]
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    return folder


def test_marked_tokens_alone_were_trained_on_and_counted(folder: Path) -> None:
    training = TrainingFolder(folder / "studies" / "tuned" / "training")
    plan, records = training.plan(), training.read_records()
    assert plan is not None and plan.recipe.trained_tokens == "marked" and plan.initial_weights
    steps = steps_of(records)
    assert all(step.trained_tokens for step in steps)
    assert sum(step.trained_tokens or 0 for step in steps) < sum(len(s.losses) * s.tokens_per_step for s in steps) / 2
    losses = [record.loss for record in records if isinstance(record, Validated)]
    assert losses[-1] < 0.5 * losses[0]
    assert "trained on)" in (folder / "output").read_text()


def test_the_exported_folder_answers_and_ends_its_turn(folder: Path) -> None:
    assert " plus " in answer(folder / "answers", "what is 3 plus 4?")
    assert " plus " in (folder / "output").read_text().splitlines()[-1]
