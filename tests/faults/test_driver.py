"""The driver interrupted, killed, and resumed: nothing measured is lost, and what a kill leaves is swept."""

import dataclasses
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from platform.cluster.leftovers import NOTE, of_session
from tests.whole_searches.session import LATE, ROOT, Ended, Session, beyond_loopback, write_space
from tests.whole_searches.studies import (
    ANSWERED,
    IN_ORDER,
    SLOW,
    WITHOUT_MLFLOW,
    Run,
    all_ran,
    in_rung,
    nothing_twice,
    num_rungs,
    sessions_of,
    shows_a_result,
    start,
)
from trainers.records.journal import End, Line, Measured, RungStart, TrialEnd, TrialStart

pytestmark = [pytest.mark.ray, pytest.mark.search]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cut(Run):
    """The study, and what its killed driver left."""

    swept: bool
    """Whether the processes and the temporary folder of the killed driver were gone when the first trial of the next
    session began."""
    listening: frozenset[tuple[str, str]]
    """The processes of the first session that listened during a rung, each with its address."""


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Runs the study: SIGKILL of the driver in a rung, Ctrl-C in that rung of the next session, then left alone.

    It has one layout: what a search does after its last layout is not asked here.
    """
    folder = tmp_path_factory.mktemp("a study cut")
    space = write_space(folder / "short.py", **SLOW)
    # By itself a CPU's rung times a second: on a fast machine it would be over before it is cut.
    argv = (str(space), "--name", "cut", *IN_ORDER, "--steps=15")
    with start(folder, "cut", 1, *argv, environment=WITHOUT_MLFLOW) as session:
        session.wait_for("the second rung", lambda lines: in_rung(lines, trial=1, micro_batch=2))
        with session.standing_still():
            listening = session.listening()
            note = json.loads((session.journal.parent / NOTE).read_text())
            for agent in session.workers(LATE):
                agent.suspend()  # or it ends by itself, where the next session's start takes longer than a minute
            session.kill()
        first = session.end()
        scratch, ray_session = Path(note["scratch"]), Path(note["ray_session"])
        assert scratch.is_dir() and of_session(ray_session), "else there is nothing to sweep"
        with start(folder, "cut", 2, "--resume", "cut", environment=WITHOUT_MLFLOW) as resumed:
            _wait_for_trial(resumed, 2)
            swept = not of_session(ray_session) and not scratch.exists()
            resumed.wait_for("the second rung", lambda lines: in_rung(lines, trial=2, micro_batch=2))
            resumed.interrupt()
            second = resumed.end()
    arguments = (*how_to_resume(second), "--gpu-s", "3600")
    with start(folder, "cut", 3, *arguments, environment=WITHOUT_MLFLOW) as session:
        _wait_for_trial(session, 3)
        _kill_recorders(session, 2)
        last = session.end()
    return Cut(path=folder / "studies" / "cut", sessions=(first, second, last), swept=swept, listening=listening)


def _wait_for_trial(session: Session, number: int) -> None:
    session.wait_for(f"trial {number}", lambda lines: sum(isinstance(line, TrialStart) for line in lines) == number)


def _kill_recorders(session: Session, times: int) -> None:
    """Kills the recorder in the rung that begins next, and again each time that Ray has restarted it."""
    number = num_rungs(session.lines())
    session.wait_for("a rung", lambda lines: num_rungs(lines) > number)
    killed: set[int] = set()

    def next_recorder(_: Sequence[Line]) -> psutil.Process | None:
        return next((worker for worker in session.workers(["Recorder"]) if worker.pid not in killed), None)

    for _ in range(times):
        recorder = session.wait_for("a recorder", next_recorder)
        killed.add(recorder.pid)
        recorder.kill()


def how_to_resume(ended: Ended) -> list[str]:
    """Returns the arguments of the command that an interrupted search prints."""
    output = next(line for line in ended.err.splitlines() if line.startswith("Interrupted."))
    return shlex.split(output.partition("python -m platform.search ")[2])


class TestCutShort:
    """One study in three sessions."""

    def test_exit_codes(self, cut: Cut) -> None:
        *cut_short, last = cut.sessions
        assert [session.code for session in cut_short] == [-signal.SIGKILL, 130] and last.code in ANSWERED, last.err

    def test_ctrl_c_says_how_to_go_on_and_ends_the_journal(self, cut: Cut) -> None:
        _, second, _ = sessions_of(cut.lines())
        assert isinstance(second[-1], End) and second[-1].exit_code == 130 and second[-1].gpu_s > 0
        assert "go on with: python -m platform.search --resume cut" in cut.sessions[1].err
        assert "Traceback" not in cut.sessions[1].err
        assert shows_a_result(cut.sessions[1].out), "what was measured is shown"

    def test_the_kill_left_no_last_line(self, cut: Cut) -> None:
        first, _, third = sessions_of(cut.lines())
        assert not any(isinstance(line, End) for line in first) and isinstance(third[-1], End)

    def test_what_was_durable_is_kept_and_nothing_is_measured_twice(self, cut: Cut) -> None:
        nothing_twice(cut)
        all_ran(cut.lines(), (1, 2), num_layouts=1)

    def test_each_session_ran_what_was_missing(self, cut: Cut) -> None:
        remaining, num_measured = [1, 2], 0
        for number, lines in enumerate(sessions_of(cut.lines())):
            if number:
                assert f"Kept {num_measured} measurement" in cut.sessions[number].err
                assert "; 1 layout to complete" in cut.sessions[number].err
            for line in lines:
                if isinstance(line, TrialStart):
                    assert list(line.micro_batches) == remaining
                elif isinstance(line, Measured):
                    remaining.remove(line.measurement.batch.micro_batch)
                    num_measured += 1
        assert not remaining and num_measured == 2

    def test_both_cuts_came_in_the_middle_of_a_rung(self, cut: Cut) -> None:
        for lines in sessions_of(cut.lines())[:2]:
            lines_before_end = [line for line in lines if not isinstance(line, End)]
            assert isinstance(lines_before_end[-1], RungStart)

    def test_a_recorder_that_is_killed_is_started_again_and_costs_nothing(self, cut: Cut) -> None:
        """Checks the last session, in which the recorder was killed twice, from the middle of a rung on."""
        ends = [line for line in sessions_of(cut.lines())[2] if isinstance(line, TrialEnd)]
        assert {(end.state, end.fault) for end in ends} == {("done", "")}, ends
        assert "recorder" not in cut.sessions[2].err

    def test_the_last_session_shows_all_of_it(self, cut: Cut) -> None:
        out = cut.sessions[2].out
        count = sum(not measurement.repeat for measurement in cut.measured)
        assert len(re.findall(r" (ok|ok \*|slow)$", out, re.MULTILINE)) == count and shows_a_result(out)

    def test_what_the_killed_driver_left_is_swept_and_said(self, cut: Cut) -> None:
        assert cut.swept
        output = next(line for line in cut.sessions[1].err.splitlines() if line.startswith("Removed"))
        assert re.search(
            r"Removed from this machine what the killed search left: \d+ process.*, a temporary folder\.", output
        )
        assert not (cut.path / NOTE).exists(), "the last session ended in order"
        assert not any("Removed from" in session.err for session in cut.sessions[::2])


class TestListeners:
    """Sockets of a search on a Ray of its own: other machines reach none of them, not even during a trial."""

    def test_nothing_listens_beyond_this_machine(self, cut: Cut) -> None:
        assert beyond_loopback(cut.listening) == []

    def test_all_that_listens_was_seen(self, cut: Cut) -> None:
        listening = {name for name, _ in cut.listening}
        assert {"gcs_server", "raylet"} <= listening and any("RayTrainWorker" in name for name in listening), listening


HUNG_UP = """
import sys, time
from platform.common.output import print_line
from platform.common.signals import interruptible

with interruptible():
    try:
        print("ready", flush=True)
        time.sleep(120)
    except KeyboardInterrupt:
        print_line("Interrupted.")  # nobody is there to read it
        open(sys.argv[1], "w").write("in order")
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_a_search_in_order_unless_it_ignores_that(tmp_path: Path, ignored: bool) -> None:
    """Closes the terminal of a search that ends by the signal and of one that ignores it, as under `nohup`, which
    serves searches that outlive their terminal.
    """
    ours, theirs = pty.openpty()

    def first() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    command = [sys.executable, "-c", HUNG_UP, str(tmp_path / "ended")]
    process = subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, preexec_fn=first, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        output = b""
        while not output.endswith(b"\n"):
            output += os.read(ours, 100)
        os.close(ours)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        else:
            assert process.wait(600) == 0 and (tmp_path / "ended").read_text() == "in order"
    finally:
        process.kill()
        process.wait()
