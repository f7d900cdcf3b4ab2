"""A user's own function is searched to a confirmed answer, profiled and reported: the page's example."""

from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
from platform.study.result.result import StudyResult
from tests.contract.test_function import example
from tests.whole_searches.studies import ANSWERED, RAN, WITHOUT_MLFLOW, Run, nothing_twice, start
from trainers.records.measurement import Outcome

BROKEN = """
def build_or_fail(layout):
    if layout["bucket"] == 0:
        raise RuntimeError("no such bucket")
    return build(layout)
"""


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.search
def test_the_page_s_example_is_searched_on_two_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks several micro-batches in one trial, a broken value, final runs, a profile and a report."""
    (tmp_path / "own.py").write_text(example() + BROKEN)
    options = ("--name", "own", "--gpus", "2", "--searcher", "sweep", "--repeats", "1", "--profile")
    axes = ("--set", "bucket=25,0", "--set", "foreach=true", "--set", "micro_batch=8,32")
    function = ("--build", f"{tmp_path}/own.py:build_or_fail", "--tokens-per-step", "4096", "--seq-len", "64")
    environment = {**WITHOUT_MLFLOW, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with start(tmp_path, "own", 1, *options, *axes, *function, environment=environment) as session:
        ended = session.end()
    assert ended.code in ANSWERED, ended.err
    run = Run(path=tmp_path / "studies" / "own", sessions=(ended,))
    nothing_twice(run)
    by_label = {m.layout.label: m.outcome for m in run.measured if m.outcome not in RAN}
    assert by_label == {"bucket=0 foreach=true": Outcome.FAILED}
    (failed,) = [m for m in run.measured if m.outcome is Outcome.FAILED]
    assert "no such bucket" in failed.reason
    first_trial = [m for m in run.measured if m.outcome in RAN and not m.repeat]
    assert [m.batch.micro_batch for m in first_trial] == [8, 32] and len({m.trial_id for m in first_trial}) == 1
    assert all(m.peak_allocated_gib and m.losses for m in first_trial)
    (result,) = StudyResult.of(run.history).of_study
    if result.winner is not None:  # on a busy machine it may not be resolved
        assert result.winner.repeat and "nothing inside of a function is compared" in ended.out
        assert run.history.profiles, "the winner's"
    assert report.main(["own", "--studies", str(run.path.parent), "--no-mlflow"]) in ANSWERED
    assert "bucket=25 foreach=true" in capsys.readouterr().out
