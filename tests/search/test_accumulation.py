"""A real search over accumulations by value: each makes its recipe, and each row states its global batch."""

from pathlib import Path

import pytest

from platform.reports.files import read_layout
from tests.search.session import write_space
from tests.search.studies import Run, start

pytestmark = [pytest.mark.ray, pytest.mark.search]


def test_each_accumulation_has_its_ladder_its_winner_and_its_row(tmp_path: Path) -> None:
    space = write_space(tmp_path / "tiny.py", seq_len=32, micro_batches=(1, 2))
    with start(tmp_path, "accumulation", 1, str(space), "--name", "accumulation", "--set", "grad_accum=1,2") as session:
        run = Run(path=tmp_path / "studies" / "accumulation", sessions=(session.end(),))
    (ended,) = run.sessions
    assert ended.code == 0, ended.err
    found = {(each.batch.grad_accum, each.batch.micro_batch): each for each in run.measured if not each.repeat}
    assert {point: each.global_batch for point, each in found.items()} == {(1, 1): 2, (1, 2): 4, (2, 1): 4, (2, 2): 8}
    assert len({each.trial_id for each in found.values()}) == 2, "one trial climbs the micro-batches of an accumulation"
    for each in found.values():
        assert each.tokens_per_s is not None and each.step_time_s is not None
        assert each.tokens_per_s * each.step_time_s == pytest.approx(each.global_batch * 32)
    assert "What accumulation buys, and the global batch it makes" in ended.out
    first = read_layout(run.path / "layout.json")
    assert first.recipe is not None and first.batch is not None
    assert (first.recipe.grad_accum, first.recipe.global_batch) == (0, 2 * first.batch.micro_batch)
