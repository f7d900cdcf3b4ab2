"""A search of a model with experts on CPU workers: both ways to compute them, ranks that share them out, forced balance
and a learned gate.
"""

from pathlib import Path

import pytest

from platform.study.result.result import StudyResult
from tests.whole_searches.studies import ANSWERED, RAN, WITHOUT_MLFLOW, Run, start

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]


@pytest.mark.parametrize(("space", "workers"), [("qwen3_30b_a3b", "2"), ("qwen3_30b_a3b", "4"), ("gpt_oss_20b", "2")])
def test_a_model_with_experts_is_searched_and_gated_on_its_miniature(space: str, workers: str, tmp_path: Path) -> None:
    options = ("--gpus", workers, "--name", "experts", "--steps", "4", "--repeats", "1", "--searcher", "sweep")
    with start(tmp_path, "experts", 1, space, *options, environment=WITHOUT_MLFLOW) as session:
        session_end = session.end()
    assert session_end.code in ANSWERED, session_end.err
    run = Run(path=session.journal.parent, sessions=(session_end,))
    result = StudyResult.of(run.history)
    (of_recipe,) = result.of_study
    model = of_recipe.recipe.model
    assert (model.num_experts, model.experts_per_token, of_recipe.recipe.routing) == (8, 2, "balanced")
    ran = {measurement.layout.experts for measurement in run.measured if measurement.outcome in RAN}
    assert ran == {"grouped", "loop"}
    assert {measurement.layout.ep for measurement in run.measured if measurement.outcome in RAN} == {1, 2}
    assert "forced balance" in {caveat.name for caveat in of_recipe.caveats}
    assert "Forced balance: " in session_end.out
    if of_recipe.winner is not None:
        assert of_recipe.gate is not None and of_recipe.gate.passed, of_recipe.gate
