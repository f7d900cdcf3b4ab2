"""Searches of ten configurations as transformers writes them, each by its path alone, on two CPU workers."""

from pathlib import Path

import pytest

from tests.search.studies import FOUND, RAN, Run, start
from tests.search_spaces.test_configs_of_today import ACCEPTED, REFUSED, config_of

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

SHORT = ("--max-trials", "2", "--steps", "4", "--repeats", "0", "--time-budget-s", "120")
BATCH = ("--set", "global_batch=8", "--set", "micro_batch=4")
"""Two layouts, one rung each, and as few steps as a figure takes."""


@pytest.mark.parametrize("kind", [*ACCEPTED, *REFUSED])
def test_a_configuration_is_searched_or_refused_by_its_key(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    config_of(kind).save_pretrained(folder)
    with start(tmp_path, kind, 1, str(folder), "--name", kind, *SHORT, *BATCH) as session:
        ended = session.end()
    if kind in REFUSED:
        assert ended.code == 2 and not session.journal.exists()
        assert ended.err.count("\n") == 1 and ended.err.startswith(f"error: {REFUSED[kind]} of {kind} is ")
        return
    assert ended.code in FOUND, ended.err
    assert "seq_len 512 by default, which" in ended.err
    run = Run(path=session.journal.parent, sessions=(ended,))
    assert {each.recipe.model.architecture for each in run.measured} == {"gemma3_text" if kind == "gemma3" else kind}
    assert any(each.outcome in RAN and each.tokens_per_s for each in run.measured)
    assert [gate.is_reference for gate in run.history.gates].count(False) >= 1
    assert not [each for each in run.history.measurements if each.phase == "gate"], "a winner failed its gate"
