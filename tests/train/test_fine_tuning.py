"""The commands of docs/fine-tuning.md, run as they stand there: from chats to a folder that answers."""

from collections.abc import Generator
from pathlib import Path

import pytest

from platform.train.training_folder import TrainingFolder, steps_of
from scripts.tiny_chat import answer
from tests.train.pages import ROOT, commands, followed
from trainers.records.training import Begun, Validated

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

PAGE = ROOT / "docs" / "fine-tuning.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Yields the folder in which all commands ran, one after the other, in one shell."""
    folder = tmp_path_factory.mktemp("tuned")
    with followed("\n".join(commands(PAGE)), folder, timeout_s=2400):
        yield folder


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
    expected = answer(folder / "answers", "what is 3 plus 4?")
    assert " plus " in expected
    assert expected in (folder / "output").read_text().splitlines()


def test_adapters_were_killed_went_on_and_answer_beside_the_model(folder: Path) -> None:
    training = TrainingFolder(folder / "studies" / "small" / "training")
    plan, records = training.plan(), training.read_records()
    assert plan is not None and plan.recipe.adapter == "lora_16" and plan.initial_weights == str(folder / "answers")
    begun = [record for record in records if isinstance(record, Begun)]
    assert len(begun) == 2 and begun[1].tokens > 0
    losses = [record.loss for record in records if isinstance(record, Validated)]
    assert losses[-1] < losses[0]
    assert (folder / "adapters" / "adapter_model.safetensors").is_file()
    expected = answer(folder / "answers", "what is 3 plus 4?", folder / "adapters")
    assert " plus " in expected
    assert (folder / "output").read_text().splitlines()[-1] == expected
