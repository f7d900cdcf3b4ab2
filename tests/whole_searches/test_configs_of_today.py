"""Searches of ten configurations as transformers writes them, each by its path alone, on two CPU workers."""

from pathlib import Path

import pytest

from platform.study.result.result import StudyResult
from tests.search_spaces.test_configs_of_today import ACCEPTED, REFUSED, config_of
from tests.whole_searches.studies import ANSWERED, RAN, Run, start

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

SHORT = ("--max-trials", "2", "--steps", "4", "--repeats", "0", "--time-budget-s", "120")
BATCH = ("--set", "global_batch=8", "--set", "micro_batch=4")
"""Two layouts, one rung each, and as few steps as a figure takes."""


def test_two_precisions_have_a_winner_each_and_the_answer_says_what_fp8_costs(tmp_path: Path) -> None:
    config_of("llama").save_pretrained(tmp_path / "llama")
    changes = ("compute_precision=bf16,fp8_tensorwise", "engine=ddp", "checkpointing=none")
    sets = [word for change in changes for word in ("--set", change)]
    with start(tmp_path, "price", 1, str(tmp_path / "llama"), "--name", "price", *SHORT, *BATCH, *sets) as session:
        session_end = session.end()
    assert session_end.code in ANSWERED, session_end.err
    result = StudyResult.of(Run(path=session.journal.parent, sessions=(session_end,)).history)
    speeds = [recipe_result.winner.tokens_per_s or 0.0 for recipe_result in result.of_study if recipe_result.winner]
    assert len(speeds) == 2 and session_end.out.count("Fastest of 1 ") == 2
    price = result.float8_price(result.of_study[1])
    assert price is not None and price.speed_ratio == pytest.approx(speeds[1] / speeds[0])
    assert speeds[1] < speeds[0], "a CPU emulates it"
    assert price.steps >= 2 and price.mean_loss_change and abs(price.mean_loss_change) < 0.05
    assert "fp8_tensorwise beside bf16: slower" in session_end.out and price.sentence in " ".join(
        session_end.out.split()
    )


@pytest.mark.parametrize("kind", [*ACCEPTED, *REFUSED])
def test_a_configuration_is_searched_or_refused_by_its_key(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    config_of(kind).save_pretrained(folder)
    with start(tmp_path, kind, 1, str(folder), "--name", kind, *SHORT, *BATCH) as session:
        session_end = session.end()
    if kind in REFUSED:
        assert session_end.code == 2 and not session.journal.exists()
        assert session_end.err.count("\n") == 1 and session_end.err.startswith(f"error: {REFUSED[kind]} of {kind} is ")
        return
    assert session_end.code in ANSWERED, session_end.err
    assert "seq_len 512 by default, which" in session_end.err
    assert session_end.out.count("Fastest of ") + session_end.out.count("Not resolved between ") == 1
    run = Run(path=session.journal.parent, sessions=(session_end,))
    assert {measurement.recipe.model.architecture for measurement in run.measured} == {
        "gemma3_text" if kind == "gemma3" else kind
    }
    assert any(measurement.outcome in RAN and measurement.tokens_per_s for measurement in run.measured)
    assert not [measurement for measurement in run.history.measurements if measurement.phase == "gate"], (
        "a winner failed its gate"
    )
