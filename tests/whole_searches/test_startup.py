"""Optimisations of trials' starts can be switched off, and the search has the same answer."""

from pathlib import Path

import pytest

from tests.whole_searches.session import Ended, write_space
from tests.whole_searches.studies import WITHOUT_MLFLOW, Run, start
from trainers import startup
from trainers.records.measurement import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]


def _searched(folder: Path, space: Path, name: str, value: str) -> tuple[Ended, Run]:
    argv = (str(space), "--name", name, "--steps", "4", "--searcher", "sweep")
    with start(folder, name, 1, *argv, environment={startup.SWITCH: value, **WITHOUT_MLFLOW}) as session:
        session_end = session.end()
    return session_end, Run(path=folder / "studies" / name, sessions=(session_end,))


def test_a_search_gives_the_same_answer_without_it(tmp_path: Path) -> None:
    space = write_space(tmp_path / "tiny.py", axes={"engine": ("ddp",), "bucket_mib": (0, 8)}, micro_batches=(1,))
    (fast_end, fast), (plain_end, plain) = (
        _searched(tmp_path, space, name, value) for name, value in (("fast", "1"), ("plain", "0"))
    )
    assert {fast_end.code, plain_end.code} <= {0, 4}
    points = [
        {
            measurement.layout.id: (measurement.outcome, measurement.losses[:3])
            for measurement in run.measured
            if not measurement.repeat
        }
        for run in (fast, plain)
    ]
    assert len(points[0]) == 2
    assert points[0].keys() == points[1].keys()
    for layout, (_, losses) in points[0].items():
        assert points[1][layout][1] == pytest.approx(losses, rel=1e-5), "the same model is trained on the same tokens"
    # Speed may differ, and with it whether the second layout is stopped early.
    assert {outcome for run in points for outcome, _ in run.values()} <= {Outcome.OK, Outcome.SLOW}
