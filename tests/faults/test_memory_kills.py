"""Ray's memory monitor kills processes for real, for a neighbour's memory too, and what uses them learns of it."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests import needs
from tests.faults.memory_group import MemoryGroup
from tests.whole_searches.session import ENVIRONMENT, ROOT, Session, lives, write_space
from tests.whole_searches.studies import (
    ANSWERED,
    IN_ORDER,
    RAN,
    SLOW,
    WITHOUT_MLFLOW,
    Run,
    nothing_twice,
    num_rungs,
    start,
)
from trainers.records.journal import Measured, TrialEnd
from trainers.records.measurement import Outcome

MONITOR = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100", "RAY_AUTH_MODE": "disabled"}
"""Settings of Ray's memory monitor, with a share of memory as the threshold that every host exceeds."""
KILLED = """
import time, ray

ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
from trainers.host.memory_kills import MemoryKills

@ray.remote(num_cpus=0)
class Victim:
    def work(self):
        time.sleep(3600)

kills = MemoryKills()
try:
    ray.get(Victim.remote().work.remote(), timeout=120)
except ray.exceptions.OutOfMemoryError:
    print(kills.since())
    print(MemoryKills().since(wait_s=0) or "nobody")
"""
LIMIT_BYTES = 7 * 2**30
"""Memory of the search with its Ray and of a neighbour, of which the monitor leaves `MOST`."""
MOST = 0.6
HUNGRY = """
import re, sys, time
taken, most_bytes, stat = [], float(sys.argv[1]), sys.argv[2]
while True:
    used = sum(int(number) for number in re.findall(r"^(?:total_rss|anon) (\\d+)$", open(stat).read(), re.MULTILINE))
    if used > most_bytes:
        time.sleep(0.05)
    else:
        taken.append(bytearray(b"x") * 2**23)
"""
KINDS = ("Recorder", "RayTrainWorker", "SynchronizationActor", "ImplicitFunc")
"""Names that Ray gives the processes of a search's trial."""


@pytest.mark.ray
@pytest.mark.heavy
def test_the_memory_monitor_s_kills_since_a_moment_are_found() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, env=ENVIRONMENT | MONITOR, capture_output=True, text=True, timeout=400
    )
    assert completed.returncode == 0, completed.stderr
    first, second = completed.stdout.splitlines()
    assert first.startswith("process ") and " killed due to the node running low on memory" in first
    assert second == "nobody", "kills before the moment do not count"


@pytest.fixture
def group() -> Generator[MemoryGroup]:
    """A group of memory in which a search and its neighbour are alone with Ray's monitor."""
    with MemoryGroup(f"layout-search-neighbour-{os.getpid()}") as made:
        if not made.exists:
            needs.refused("control groups of memory", "no group could be made")
        made.limit(LIMIT_BYTES)
        yield made


@contextlib.contextmanager
def _neighbour(group: MemoryGroup) -> Generator[None]:
    """Runs a process that takes memory until the monitor must kill, and holds it."""
    command = [sys.executable, "-S", "-c", HUNGRY, str((MOST + 0.05) * LIMIT_BYTES), str(group.path / "memory.stat")]
    with subprocess.Popen(command, preexec_fn=group.join) as hungry:
        try:
            yield
        finally:
            hungry.kill()


def _searched(folder: Path, group: MemoryGroup, disturb: Callable[[Session], object]) -> Run:
    """Returns a search of two layouts which `disturb` disturbs in the second rung."""
    space = write_space(folder / "beside.py", axes={"engine": ("ddp",), "bucket_mib": (0, 8)}, **SLOW)
    environment = MONITOR | WITHOUT_MLFLOW | {"RAY_memory_usage_threshold": str(MOST)}
    argv = (str(space), "--name", "beside", *IN_ORDER, "--steps", "20")
    with start(folder, "beside", 0, *argv, environment=environment, before=group.join_alone) as session:
        session.wait_for("a measurement", lambda lines: [line for line in lines if isinstance(line, Measured)])
        session.wait_for("the next rung", lambda lines: num_rungs(lines) > 1)
        disturb(session)
        ended = session.end()
    return Run(path=folder / "studies" / "beside", sessions=(ended,))


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
class TestNeighbour:
    """A process outside the search fills the host, so that the monitor kills all that the search has there."""

    def test_one_that_lets_go_is_named_and_costs_one_trial(self, tmp_path: Path, group: MemoryGroup) -> None:
        def fill(session: Session) -> None:
            (tune,) = session.workers(["ImplicitFunc"])
            with _neighbour(group):
                session.wait_for("a kill", lambda lines: not lives(tune))

        run = _searched(tmp_path, group, fill)
        output = run.sessions[0].err
        assert run.sessions[0].code in ANSWERED and "Traceback" not in output, output
        starved = [line for line in run.lines() if isinstance(line, TrialEnd) and line.fault == "starved"]
        assert starved and all(end.state == "interrupted" for end in starved), output
        # It is the largest outside the search, on a machine where nothing else runs the one that was made here.
        assert re.search(r"; process \d+ \(.+\), which is none of this run's, held [\d.]+ GB", starved[0].reason)
        assert {entry.outcome for entry in run.measured} <= RAN, "nothing is held against a layout"
        assert len({entry.id for entry in run.measured}) == 4, "each point of both layouts is measured"
        nothing_twice(run)

    def test_one_that_does_not_ends_the_search_with_how_to_go_on(self, tmp_path: Path, group: MemoryGroup) -> None:
        with contextlib.ExitStack() as stack:
            run = _searched(tmp_path, group, lambda _: stack.enter_context(_neighbour(group)))
        output = run.sessions[0].err
        assert run.sessions[0].code == 3 and "Traceback" not in output, output
        last = output.splitlines()[-1]
        assert last.startswith("cluster fault: ") and "--resume beside" in last, output
        assert re.search(r"to a process outside the search|recorder is gone|did not start", last), last
        assert {entry.outcome for entry in run.measured} <= RAN, "what was measured is kept"
        assert Outcome.OOM not in {entry.outcome for entry in run.measured}


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
def test_a_search_outlives_each_of_its_processes(tmp_path: Path, group: MemoryGroup) -> None:
    """Checks one death of each kind of process, in a rung of its own."""

    def kill_each(session: Session) -> None:
        for kind in KINDS:
            begun = num_rungs(session.lines())
            victims = session.workers([kind])
            assert victims, f"no {kind} runs"
            victims[0].kill()
            if kind != "Recorder":
                session.wait_for("another rung", lambda lines, begun=begun: num_rungs(lines) > begun)

    run = _searched(tmp_path, group, kill_each)
    output = run.sessions[0].err
    assert run.sessions[0].code in (*ANSWERED, 3) and "Traceback" not in output, output
    nothing_twice(run)
