"""A training tells marked tokens beside all of them: in its line, its last sentence and MLflow."""

import dataclasses
from pathlib import Path

from platform.train.mlflow_run import series_of
from platform.train.progress import TrainingProgress
from platform.train.summary import closing_sentence, summary
from platform.train.training_folder import TrainingFolder
from tests.training.values import RECIPE, STEP, STEPS, plan
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import write

PLAN = plan(recipe=dataclasses.replace(RECIPE, trained_tokens="marked"))
MARKED = dataclasses.replace(STEPS, trained_tokens=300)


def test_the_line_and_the_series_say_which_tokens_they_count() -> None:
    progress = TrainingProgress(PLAN)
    progress.add([MARKED])
    assert "tokens/s (150 trained on)" in progress.line()
    (_, first), (_, last) = series_of(MARKED)
    assert "trained_tokens_per_s" not in first
    assert (last["tokens_per_s"], last["trained_tokens_per_s"]) == (STEP, 150.0)
    of_all = STEPS
    progress = TrainingProgress(plan())
    progress.add([of_all])
    assert "trained on" not in progress.line() and "trained_tokens_per_s" not in series_of(of_all)[-1][1]


def test_the_last_sentence_counts_those_with_a_loss(tmp_path: Path) -> None:
    write(tmp_path / RECORDS, MARKED)
    state = summary(TrainingFolder(tmp_path), PLAN)
    assert state["trained_tokens"] == 300
    assert "300 of them with a loss" in closing_sentence(TrainingFolder(tmp_path), {**state, "complete": True})
    assert summary(TrainingFolder(tmp_path), plan())["trained_tokens"] is None
