"""A resumed study whose fastest layout was not resolved, one that was cut before it measured anything, and one during
which the time of day was set back.

The trials are played; options, studies, journals, reports and exit codes are real.
"""

import datetime
import json
import time

import pytest

from platform.common.errors import NOT_RESOLVED
from platform.common.signals import INTERRUPTED
from platform.study.history import History
from platform.study.study import read
from tests.dead_driver import session_of_dead_driver
from tests.search.loop.played import Played, disturbed
from trainers.records import journal_lines

SWEEP = ("--name", "s", "--searcher", "sweep")


def _history(played: Played) -> History:
    return read(played.studies / "s")[0]


@pytest.fixture
def unresolved(played: Played, pair: str, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Returns a study whose first session ended with exit code 4."""
    monkeypatch.setattr(played, "play", disturbed)
    assert played.search(pair, *SWEEP) == NOT_RESOLVED
    return played


def _on_a_quiet_machine(played: Played, monkeypatch: pytest.MonkeyPatch) -> int:
    """Resumes until the winner is resolved, since quiet rounds must outweigh the disturbed ones; returns the exit
    code.
    """
    monkeypatch.setattr(played, "play", lambda job, batch: Played.play(played, job, batch))
    codes = (played.search("--resume", "s", as_object=False) for _ in range(5))
    return next((code for code in codes if code != NOT_RESOLVED), NOT_RESOLVED)


class TestNotResolved:
    def test_each_session_and_report_ends_with_code_4_and_leaves_no_winner(
        self, unresolved: Played, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert unresolved.search("--resume", "s", as_object=False) == NOT_RESOLVED
        assert unresolved.jobs and all(job.repeat > 1 for job in unresolved.jobs), "the contenders alone go on"
        output = capsys.readouterr()
        assert "Not resolved between " in " ".join(output.out.split()) and "Fastest" not in output.out
        assert "Not resolved which layout is the fastest" in output.err
        assert "go on with: python -m platform.search --resume s" in output.err
        last = output.err.rstrip().splitlines()[-1]
        assert last.startswith("Go on with: python -m platform.search --resume s"), "below the table"
        assert not (unresolved.studies / "s" / "layout.json").exists()

        assert unresolved.report("s", "--json") == NOT_RESOLVED
        printed = json.loads(capsys.readouterr().out)
        assert (
            printed["winner"] is None
            and len(printed["unresolved"]) == 2
            and printed["end"]["exit_code"] == NOT_RESOLVED
        )
        history = _history(unresolved)
        assert history.sessions == 2 and history.end is not None and history.end.exit_code == NOT_RESOLVED

    def test_once_it_is_resolved_it_has_a_winner_and_then_nothing_is_left_to_run(
        self, unresolved: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert _on_a_quiet_machine(unresolved, monkeypatch) == 0
        output = capsys.readouterr()
        assert "Fastest of 2 layouts tried for" in " ".join(output.out.split())
        layout = json.loads((unresolved.studies / "s" / "layout.json").read_text())
        assert layout["layout"].get("checkpointing", "none") == "none"
        of_search = [measurement for measurement in _history(unresolved).measurements if not measurement.repeat]
        assert len(of_search) == 2, "the search itself never ran again"

        monkeypatch.setenv("RAY_TMPDIR", str(unresolved.studies))
        abandoned = session_of_dead_driver(unresolved.studies)
        assert unresolved.search("--resume", "s") == 0 and not unresolved.jobs
        assert "nothing is left to run" in capsys.readouterr().err
        assert not abandoned.exists(), "no Ray of this command sweeps"
        assert unresolved.report("s") == 0

    def test_ctrl_c_in_a_resumption_leaves_it_open(
        self, unresolved: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        unresolved.cut = 2
        assert unresolved.search("--resume", "s") == INTERRUPTED and len(unresolved.jobs) == 1
        assert unresolved.report("s") == NOT_RESOLVED
        assert "Interrupted." in capsys.readouterr().out
        unresolved.cut = None
        assert _on_a_quiet_machine(unresolved, monkeypatch) == 0


class TestNothingMeasured:
    @pytest.mark.parametrize("how", ["Ctrl-C", "budget"])
    def test_the_planned_layouts_are_shown(
        self, how: str, played: Played, pair: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Checks a CPU, for which nothing is predicted: `tests/report/test_untried.py` shows predictions of GPUs."""

        def cut(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        if how == "Ctrl-C":
            monkeypatch.setattr(played, "play", cut)
        budget = () if how == "Ctrl-C" else ("--time-budget-s", "0.001")
        code = INTERRUPTED if how == "Ctrl-C" else 1
        assert played.search(pair, *SWEEP, *budget, as_object=False) == code
        out = capsys.readouterr().out
        assert "Not tried: 2 of 2 layouts" in out and out.count("  DDP") == 2
        assert "Nothing was measured for tiny" in " ".join(out.split())
        assert played.report("s", "--json") == 1
        printed = json.loads(capsys.readouterr().out)
        assert (printed["layouts_tried"], printed["layouts_planned"], len(printed["not_tried"])) == (0, 2, 2)


def test_budgets_and_spent_time_hold_where_the_time_of_day_is_set_back(
    played: Played, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets the time of day back by two hours after each trial."""
    began, unix_s = datetime.datetime.now(datetime.UTC), time.time()

    def set_back() -> datetime.timedelta:
        return datetime.timedelta(hours=2 * len(played.jobs))

    monkeypatch.setattr(journal_lines, "now", lambda: (began - set_back()).isoformat(timespec="milliseconds"))
    monkeypatch.setattr(time, "time", lambda: unix_s - set_back().total_seconds())
    assert played.search(pair, *SWEEP, "--time-budget-s", "3600", "--gpu-s", "7200") == 0
    history = _history(played)
    assert history.end is not None and history.end.tried_all
    assert sum(not measurement.repeat for measurement in history.measurements) == 2
    assert history.end.at < began.isoformat(), "the journal's times went back"
    assert 0 < history.end.gpu_s == history.gpu_s < 3600 and 0 < history.end.wall_s == history.wall_s < 3600
