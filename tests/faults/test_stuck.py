"""A Ray that no longer answers: its recorder gone for good, its raylet killed, all of it stopped under a Ctrl-C."""

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil
import pytest

from tests.whole_searches.session import ROOT, Session, write_space
from tests.whole_searches.studies import IN_ORDER, RAN, SLOW, Run, num_rungs, sessions_of, shows_a_result, start
from trainers.records.journal import End, Measured, TrialEnd
from trainers.trial.recorder import MAX_RESTARTS

LONGEST_S = 200.0
"""The longest time from the fault to the end of the process, which once hung for ever after each of these faults."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stuck(Run):
    """The study in three sessions, none of which Ray saw to its end."""

    took_s: Sequence[float]
    """Seconds from the fault to the end of each session."""


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Stuck:
    """Runs the study: the recorder of the first session is killed again and again, the raylet of the second once, and
    Ray is stopped under the third, which is interrupted.
    """
    folder = tmp_path_factory.mktemp("stuck")
    space = write_space(folder / "stuck.py", axes={"engine": ("ddp",), "bucket_mib": (0, 8)}, **SLOW)
    ended, took_s = [], list[float]()
    for number, argv in enumerate(
        ((str(space), "--name", "stuck", *IN_ORDER), ("--resume", "stuck"), ("--resume", "stuck"))
    ):
        with start(folder, "stuck", number, *argv) as session:
            before = num_rungs(session.lines()) if number else 0
            session.wait_for("a rung", lambda lines, before=before: num_rungs(lines) > before)
            if not number:
                session.wait_for("a measurement", lambda lines: [line for line in lines if isinstance(line, Measured)])
            began_s = time.monotonic()
            (_kill_recorders, _kill_raylet, _stop_ray)[number](session)
            ended.append(session.end())
            took_s.append(time.monotonic() - began_s)
    return Stuck(path=folder / "studies" / "stuck", sessions=tuple(ended), took_s=took_s)


def _kill_recorders(session: Session) -> None:
    killed: set[int] = set()
    while len(killed) <= MAX_RESTARTS:
        for worker in session.workers(["Recorder"]):
            if worker.pid not in killed:
                killed.add(worker.pid)
                worker.kill()
        time.sleep(0.2)


def _kill_raylet(session: Session) -> None:
    for process in _named(session, "raylet"):
        process.kill()


def _stop_ray(session: Session) -> None:
    for process in _named(session, "raylet", "gcs_server"):
        process.suspend()
    session.interrupt()


def _named(session: Session, *names: str) -> list[psutil.Process]:
    processes: list[psutil.Process] = []
    for process in session.family():
        with contextlib.suppress(psutil.Error):
            if process.name() in names:
                processes.append(process)
    assert processes
    return processes


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
class TestSearch:
    def test_each_session_ends_and_says_how_to_go_on(self, stuck: Stuck) -> None:
        for session_end, took_s in zip(stuck.sessions, stuck.took_s, strict=True):
            assert took_s < LONGEST_S and "--resume stuck" in session_end.err and "Traceback" not in session_end.err, (
                session_end.err
            )
            assert shows_a_result(session_end.out), "what was measured is shown"

    def test_a_recorder_that_is_gone_is_the_cluster_s_fault(self, stuck: Stuck) -> None:
        assert stuck.sessions[0].code == 3
        output = stuck.sessions[0].err.splitlines()[-1]
        assert output.startswith(
            f"cluster fault: the study's recorder is gone: its process died more than {MAX_RESTARTS}"
        )

    def test_so_is_a_raylet_that_died(self, stuck: Stuck) -> None:
        assert stuck.sessions[1].code == 3
        output = next(line for line in stuck.sessions[1].err.splitlines() if line.startswith("cluster fault"))
        assert "(raylet) at 127.0.0.1:" in output and "has not answered for " in output

    def test_ctrl_c_ends_it_while_ray_does_not_answer(self, stuck: Stuck) -> None:
        assert stuck.sessions[2].code in (3, 130), "which of the two watches is first hangs on the machine"

    def test_the_journal_has_each_end_and_all_that_was_measured(self, stuck: Stuck) -> None:
        sessions = sessions_of(stuck.lines())
        for lines, session_end in zip(sessions, stuck.sessions, strict=True):
            assert [line.exit_code for line in lines if isinstance(line, End)] == [session_end.code]
        assert not any(session.state == "done" for session in sessions[0] if isinstance(session, TrialEnd))
        assert stuck.measured and all(measurement.outcome in RAN for measurement in stuck.measured)


DEAD_LOCK = """
import ctypes, threading, time
from pathlib import Path
from platform.common import signals

signals.INTERRUPT_S = 1.0
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
system_call = Path(f"/proc/self/task/{threading.get_native_id()}/syscall")

def say_when_it_waits():
    while hex(ctypes.addressof(mutex)) not in system_call.read_text():
        time.sleep(0.01)
    print("ready", flush=True)

with signals.ends_when_interrupted():
    threading.Thread(target=say_when_it_waits, daemon=True).start()
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""


def test_ctrl_c_ends_a_process_whose_main_thread_never_returns() -> None:
    """Checks the exit code and the sentence, although Python's own handler of the signal waits for that thread."""
    command = [sys.executable, "-c", DEAD_LOCK]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, output = process.communicate(timeout=600)
            assert (process.returncode, output) == (130, "Interrupted.\n")
        finally:
            process.kill()
