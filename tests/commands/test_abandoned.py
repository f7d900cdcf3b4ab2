"""A command whose supervisor was killed with its trial: the next look at the node ends what is left of it."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from trainers.commands import processes, supervisor
from trainers.commands.processes import CommandProcesses
from trainers.host import abandoned, node

FORKS = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


def _seen(condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 300
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.02)
    return condition()


class _Run:
    """A command of two processes that sleep."""

    def __init__(self) -> None:
        scratch = CommandProcesses.new_scratch()
        self.processes = CommandProcesses(
            [sys.executable, "-c", FORKS], folder="", scratch=scratch, gpus=0, environment={}
        )
        self.mark, self.supervisor = self.processes._mark, self.processes._process.pid  # pyright: ignore[reportPrivateUsage]
        assert _seen(lambda: len(self.pids) == 2)
        # A process between fork and exec has its parent's environment, so both are seen once they sleep.

    @property
    def pids(self) -> list[int]:
        return [pid for pid in supervisor.of_command(self.mark, self.supervisor) if pid != self.supervisor]


@pytest.fixture(autouse=True)
def mark_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the runs here another mark than others': a search of another test looks at this machine too, and would end
    what a killed supervisor has left before the test looks at it.
    """
    for module in (abandoned, processes):
        monkeypatch.setattr(module, "RUN_MARK", f"MARK_OF_TEST_{os.getpid()}")


@pytest.fixture
def runs() -> Iterator[tuple[_Run, _Run]]:
    both = _Run(), _Run()
    yield both
    for run in both:
        run.processes.close()
        for pid in run.pids:
            os.kill(pid, 9)


def test_what_a_killed_supervisor_left_ends_at_the_next_look_at_the_node(runs: tuple[_Run, _Run]) -> None:
    killed, running = runs
    left = killed.pids
    psutil.Process(killed.supervisor).kill()
    assert _seen(lambda: psutil.Process(killed.supervisor).status() == psutil.STATUS_ZOMBIE)
    assert killed.pids == left, "else nothing is left to end"
    node.facts(gpu=False)
    assert _seen(lambda: not killed.pids) and len(running.pids) == 2


def test_a_run_that_searches_by_itself_does_not_end_itself(
    runs: tuple[_Run, _Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, _ = runs
    monkeypatch.setenv(abandoned.RUN_MARK, killed.mark)
    psutil.Process(killed.supervisor).kill()
    assert _seen(lambda: psutil.Process(killed.supervisor).status() == psutil.STATUS_ZOMBIE)
    assert abandoned.end_abandoned() == [] and len(killed.pids) == 2


def test_no_other_process_is_touched(tmp_path: Path) -> None:
    """Checks a process with a text in its environment that only looks like a mark."""
    with psutil.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"NAME": f"{abandoned.RUN_MARK}={'0' * 32}"},
        cwd=tmp_path,
    ) as other:
        assert abandoned.end_abandoned() == [] and other.is_running()
        other.kill()


BECOMES_A_SUPERVISOR = """
import os, sys
sys.stdin.readline()
name, *words = sys.argv[1:]
sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
os.execve(sys.executable, [sys.executable, "-I", *words, *sleeping], {**os.environ, name: words[1]})
"""


def test_a_run_that_starts_between_two_looks_at_a_process_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, read = uuid.uuid4().hex, abandoned._read  # pyright: ignore[reportPrivateUsage]
    words = [abandoned.RUN_MARK, supervisor.__file__, mark, str(tmp_path / "run")]
    process = psutil.Popen([sys.executable, "-c", BECOMES_A_SUPERVISOR, *words], stdin=subprocess.PIPE)
    assert process.stdin is not None
    stdin = process.stdin

    def read_and_start(path: Path) -> bytes:
        content = read(path)
        if path.parent.name == str(process.pid) and not supervisor.of_command(mark, process.pid):
            stdin.write(b"\n")
            stdin.flush()
            assert _seen(lambda: bool(supervisor.of_command(mark, process.pid)))
        return content

    monkeypatch.setattr(abandoned, "_read", read_and_start)
    try:
        assert abandoned.end_abandoned() == [] and process.is_running()
    finally:
        stdin.close()
        for pid in supervisor.of_command(mark, process.pid):
            os.kill(pid, 9)
        process.wait()
