"""A resumed study sweeps what the dead driver owned, by its ids, and nothing that belongs to anybody else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from platform.cluster import leftovers
from platform.cluster.leftovers import Note, sweep
from tests.dead_driver import session_of_dead_driver
from tests.whole_searches.session import lives

HOLD = """
import sys, time
log = open(sys.argv[1], "w")
entry = open(sys.argv[2], "w") if sys.argv[2:] else None
print("ready", flush=True)
time.sleep(600)
"""
Start = Callable[..., psutil.Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that holds the files given."""
    begun: list[subprocess.Popen[str]] = []

    def started(*files: Path) -> psutil.Process:
        command = [sys.executable, "-c", HOLD.replace("sys.argv", repr(["-", *map(str, files)]))]
        # The code goes through standard input: the command line is not to name the files.
        process = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(command[2])
        process.stdin.close()
        begun.append(process)
        assert process.stdout.readline() == "ready\n"
        return psutil.Process(process.pid)

    yield started
    for process in begun:
        process.kill()
        process.wait()


def _session(folder: Path, name: str) -> Path:
    session = folder / name
    (session / "logs").mkdir(parents=True)
    return session


def test_a_stopped_process_its_shared_memory_and_the_temporary_folder_go(tmp_path: Path, start: Start) -> None:
    ours, other = _session(tmp_path, "session_1"), _session(tmp_path, "session_11")
    entries = [Path(f"/dev/shm/layout-search-test-{os.getpid()}-{place}") for place in (1, 2)]
    scratch = leftovers.scratch_folder()
    try:
        process = start(ours / "logs" / "worker-a-01000000-7.out", entries[0])
        bystander = start(other / "logs" / "worker-a-01000000-8.out", entries[1])
        process.suspend()
        note = Note(ray_session=str(ours), scratch=str(scratch))
        output = "Removed from this machine what the killed search left: "
        assert sweep(note) == f"{output}1 process, 1 shared-memory segment, a temporary folder."
        assert not lives(process) and not entries[0].exists() and not scratch.exists()
        assert lives(bystander) and entries[1].exists()
        assert sweep(note) == "", "once"
    finally:
        for entry in entries:
            entry.unlink(missing_ok=True)


def test_shared_memory_of_a_worker_that_is_gone_is_known_by_its_log(tmp_path: Path) -> None:
    ours = _session(tmp_path, "session_1")
    gone = subprocess.Popen(["true"])
    gone.wait()
    (ours / "logs" / f"worker-abc-01000000-{gone.pid}.out").touch()
    entries = [Path(f"/dev/shm/torch_{pid}_{os.getpid()}_layout_search_test") for pid in (gone.pid, 4_194_999)]
    try:
        for entry in entries:
            entry.touch()
        assert "1 shared-memory segment" in sweep(Note(ray_session=str(ours)))
        assert [entry.exists() for entry in entries] == [False, True]
    finally:
        for entry in entries:
            entry.unlink(missing_ok=True)


def test_nothing_of_a_ray_that_a_driver_has_started_stays(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks agents that outlive their head, and the folder of a driver that was killed."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder, ours = tmp_path / "ray", os.getpid()
    before = _session(folder, f"session_0_{ours}")
    claim = leftovers.claim()
    ended, foreign = (_session(folder, f"session_1_{pid}") for pid in (ours, 1))
    agent = start(ended / "logs" / "agent.log")
    leftovers.end_claimed(claim, keeps_logs=True)
    assert not lives(agent) and (ended / "logs").is_dir() and claim.exists()
    leftovers.end_claimed(claim)
    assert not ended.exists() and not claim.exists()
    killed, alive = session_of_dead_driver(tmp_path), leftovers.claim()
    running = _session(folder, f"session_3_{ours}")
    orphan, worker = start(killed / "logs" / "agent.log"), start(running / "logs" / "worker.log")
    leftovers.end_abandoned_sessions()
    assert not lives(orphan) and not killed.exists()
    assert lives(worker) and sorted(folder.iterdir()) == sorted((alive, before, foreign, running))


@pytest.mark.parametrize("change", ["host", "boot", "cluster", "another's folder"])
def test_what_is_not_known_to_be_its_own_stays(tmp_path: Path, start: Start, change: str) -> None:
    """Sweeps by the note of another machine, of an earlier start of this one, of a cluster that others use, and by one
    that names a folder that is no driver's.
    """
    session, scratch = _session(tmp_path, "session_1"), tmp_path / "layout-search-x"
    scratch.mkdir()
    process = start(session / "logs" / "worker-a-01000000-7.out")
    notes = {
        "host": Note(host="elsewhere", ray_session=str(session), scratch=str(scratch)),
        "boot": Note(boot="before", ray_session=str(session), scratch=str(scratch)),
        "cluster": Note(cluster=session.name, job_id="01000000"),
        "another's folder": Note(scratch=str(tmp_path)),
    }
    assert sweep(notes[change]) == ""
    assert lives(process) and scratch.is_dir() and tmp_path.is_dir()


def test_a_note_is_there_while_a_driver_runs(tmp_path: Path) -> None:
    note = Note(ray_session="/tmp/ray/session_1", cluster="session_1", job_id="01000000", scratch="/tmp/x")
    leftovers.write_note(tmp_path, note)
    assert leftovers.read_note(tmp_path) == note
    leftovers.remove_note(tmp_path)
    assert leftovers.read_note(tmp_path) is None
    (tmp_path / leftovers.NOTE).write_text("{half")
    assert leftovers.read_note(tmp_path) is None
