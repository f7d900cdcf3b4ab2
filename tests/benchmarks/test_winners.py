"""A benchmark that runs searches: which of them it runs, and what ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import disturbed_search, guided_beside_exhaustive
from benchmarks.winners import arguments, of_named_points, search
from platform.study.study import Study, read
from tests.samples import header, measurement
from trainers.records.journal import End, Line, Measured, Resume, TrialEnd

DIED = TrialEnd(trial_id="t1", key="a-b", state="interrupted", wall_s=1.0, gpu_s=4.0, fault="died")
ROOT = Path(__file__).parents[2]
AT = "2026-01-01T00:00:{:02}.000+00:00"
SEARCH = f"""#!{sys.executable}
import sys, time
from pathlib import Path

here = Path(__file__).parent
try:
    (here / "runs").touch()
    time.sleep(60)
except KeyboardInterrupt:  # as a search does, which ends its trial first
    time.sleep(1)
    (here / "ended").touch()
    sys.exit(130)
"""
BENCHMARK = """
import conftest
import sys
from pathlib import Path

from benchmarks.winners import search

sys.executable = sys.argv[1]
search(Path(sys.argv[1]).parent, "made-up", ["gpt2"], [])
"""


def _study(studies: Path, name: str, *lines: Line) -> Path:
    """Returns a study that began at second 0 of its minute and measured one point at second 1."""
    with Study.create(studies, name) as study:
        study.record(header(name, at=AT.format(0)))
        study.record(Measured(at=AT.format(1), measurement=measurement()))
        for line in lines:
            study.record(line)
        return study.path


def _end(exit_code: int, second: int = 20, *, began: int = 0) -> End:
    return End(at=AT.format(second), exit_code=exit_code, wall_s=second - began, gpu_s=80.0)


def test_a_study_that_ended_by_itself_is_read_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/that/runs")
    _study(tmp_path, "whole", _end(130), Resume(at=AT.format(30)), _end(0, 40, began=30))
    result = search(tmp_path, "whole", ["gpt2"], ["--time-budget-s", "900"])
    assert (result["winner"]["id"], result["wall_s"]) == (measurement().id, 30.0)


@pytest.mark.parametrize(
    "lines",
    [(), (_end(130),), (_end(3),), (_end(0), Resume(at=AT.format(30)))],
    ids=["killed", "interrupted", "at fault", "resumed and killed"],
)
def test_a_study_that_was_cut_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[Line]) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/that/runs")
    _study(tmp_path, "cut", *lines)
    with pytest.raises(FileNotFoundError, match="/nothing/that/runs"):
        search(tmp_path, "cut", ["gpt2"], [])


def test_a_later_session_has_what_the_earlier_ones_left_of_the_time(tmp_path: Path) -> None:
    options = ["--time-budget-s", "60", "--gpus", "1"]
    where = ["--studies", str(tmp_path)]
    assert arguments(tmp_path, "cut", ["gpt2"], options) == ["gpt2", "--name", "cut", *where, *options]
    _study(tmp_path, "cut", _end(130), Resume(at=AT.format(30)), _end(130, 35, began=30))
    assert arguments(tmp_path, "cut", ["gpt2"], options) == ["--resume", "cut", *where, "--time-budget-s", "35.0"]
    assert arguments(tmp_path, "cut", ["gpt2"], options, 40.0)[-1] == "20.0", "a start of Ray of 5 s in it"
    assert arguments(tmp_path, "cut", ["gpt2"], [*options[:1], "20"])[-1] == "1.0", "0 is none"
    assert arguments(tmp_path, "cut", ["gpt2"], []) == ["--resume", "cut", *where]


def test_the_study_of_the_winners_takes_no_option_of_a_search_itself() -> None:
    of_search = ["--set", "micro_batch=16,32", "--gpus", "4", "--set=attention=sdpa", "--time-budget-s", "255"]
    options = [*of_search, "--searcher", "tpe", "--exclude-slow", "--max-trials", "3", "--device-memory-gib", "40"]
    remaining = ["--gpus", "4", "--exclude-slow", "--device-memory-gib", "40"]
    assert of_named_points(options) == remaining


def test_a_winner_that_ran_once_more_in_one_of_the_studies_is_the_same_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/that/runs")
    monkeypatch.setattr(sys, "argv", ["guided_beside_exhaustive", "made-up", "gpt2", "--studies", str(tmp_path)])
    _study(tmp_path, "made-up-guided", Measured(measurement=measurement(repeat=1)), _end(0))
    _study(tmp_path, "made-up-sweep", DIED, _end(0))
    assert guided_beside_exhaustive.main() == 0
    assert "both found the same point" in capsys.readouterr().out


class TestDisturbed:
    @pytest.mark.parametrize(
        ("lines", "spared"),
        [
            ((DIED, Resume(), End(exit_code=0, wall_s=1, gpu_s=4)), []),
            ((DIED, End(exit_code=0, wall_s=1, gpu_s=4)), ["the driver"]),
            ((DIED, End(exit_code=130, wall_s=1, gpu_s=4), Resume()), ["the driver"]),
            ((Resume(), End(exit_code=0, wall_s=1, gpu_s=4)), ["a train worker"]),
        ],
    )
    def test_who_was_not_killed_is_told_by_the_journal(
        self, tmp_path: Path, lines: tuple[Line], spared: list[str]
    ) -> None:
        assert disturbed_search.spared_in(_study(tmp_path, "disturbed", *lines)) == spared

    def test_a_search_that_ends_before_is_compared_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Uses studies that ended by themselves, so that nothing is run."""
        monkeypatch.setattr(sys, "executable", "/nothing/that/runs")
        monkeypatch.setattr(sys, "argv", ["disturbed_search", "made-up", "gpt2", "--studies", str(tmp_path)])
        _study(tmp_path, "made-up-calm", Measured(measurement=measurement(repeat=1)), _end(0))
        path = _study(tmp_path, "made-up-disturbed", DIED, _end(0))
        assert disturbed_search.main() == 1
        output = capsys.readouterr()
        assert "both found the same point" in output.out and read(path)[0].sessions == 1
        assert "its search ended before the driver could be killed. Begin again" in output.err


def test_signals_of_timeout_end_it_quietly_once_its_search_has_ended(tmp_path: Path) -> None:
    """Sends signals as `timeout -s INT` does: one to the command that it started, and one to that command's group."""
    command = tmp_path / "search"
    command.write_text(SEARCH)
    command.chmod(0o755)
    running = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(command)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until_s = time.monotonic() + 300
    while not (tmp_path / "runs").exists():
        assert running.poll() is None and time.monotonic() < until_s
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    _, output = running.communicate(timeout=300)
    assert output == "the study made-up was interrupted; the same command goes on with it\n"
    assert running.returncode == 1 and (tmp_path / "ended").exists()
