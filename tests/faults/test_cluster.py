"""A shared cluster: one that is at fault, a driver killed on it, and its head that dies."""

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import psutil
import pytest
from ray._private.internal_api import get_state_from_address

from platform.cluster.leftovers import NOTE, of_session
from platform.study.result.result import StudyResult
from tests.faults import leaks
from tests.loopback import free_port
from tests.whole_searches.head import short_folder, started
from tests.whole_searches.session import ENVIRONMENT, Session, write_space
from tests.whole_searches.studies import IN_ORDER, RAN, SLOW, Run, num_rungs, sessions_of, shows_a_result, start
from trainers.records.journal import End, Line, Measured, TrialEnd

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

OPEN = {"RAY_AUTH_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
BYSTANDER = """
import sys, time, ray
ray.init(sys.argv[1], logging_level="ERROR")
group = ray.util.placement_group([{"CPU": 0.05}])
ray.get(group.ready())
print(group.id.hex(), flush=True)
time.sleep(3600)
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ill(Run):
    """The study in three sessions."""

    address: str
    leaked: Sequence[str]
    """Resources that trials left behind, in all sessions."""
    cleared: bool
    """Whether all that the killed driver's job had of the cluster was gone before the next session began."""
    bystander_lives: bool
    """Whether another job's placement group was still there before the head died."""


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Ill:
    """Runs the study: every worker of the first session is killed, the driver of the second, and the head under the
    third.
    """
    folder = tmp_path_factory.mktemp("ill")
    axes = {"engine": ("ddp",), "bucket_mib": (0, 8)}
    argv = (str(write_space(folder / "ill.py", axes=axes, **SLOW)), "--name", "ill", *IN_ORDER)
    leaked: list[str] = []
    options = ("--num-cpus=2", "--include-dashboard=false")
    with (
        short_folder() as short,
        started(short, *options, port=free_port(), environment=OPEN) as address,
        _bystander(address) as others,
    ):
        (ray_session,) = (short / "ray").glob("session_2*")

        def groups() -> set[str]:
            state = get_state_from_address(address)
            try:
                table: dict[str, Any] = state.placement_group_table()
            finally:
                state.disconnect()
            return {group_id for group_id, group in table.items() if group["state"] != "REMOVED"}

        def workers(kinds: Sequence[str] = ("RayTrainWorker",)) -> list[psutil.Process]:
            return [process for process in of_session(ray_session) if any(kind in _title(process) for kind in kinds)]

        def again(number: int, *argv: str) -> Session:
            return start(folder, "ill", number, *argv, address=address, environment=OPEN)

        with again(1, *argv) as session, leaks.Accounts(session.journal, lambda: workers(leaks.KINDS)) as accounts:
            for number in (1, 2, 3):
                session.wait_for(f"rung {number}", lambda lines, number=number: num_rungs(lines) == number)
                workers()[-1].kill()
            first = session.end()
            leaked += accounts.leaked
        with again(2, "--resume", "ill") as session:
            session.wait_for("a measurement", lambda lines: [line for line in lines if isinstance(line, Measured)])
            session.kill()
            second = session.end()
            cleared = _within(300, lambda: groups() == {others} and not workers(leaks.KINDS))
        with again(3, "--resume", "ill") as session:
            before = num_rungs(Run(path=session.journal.parent, sessions=()).lines())
            session.wait_for("a rung", lambda lines: num_rungs(lines) > before)
            bystander_lives = others in groups()
            for process in of_session(ray_session):
                if process.name() in ("gcs_server", "raylet"):
                    process.kill()
            third = session.end()
    return Ill(
        path=folder / "studies" / "ill",
        sessions=(first, second, third),
        address=address,
        leaked=leaked,
        cleared=cleared,
        bystander_lives=bystander_lives,
    )


def _title(process: psutil.Process) -> str:
    try:
        return process.cmdline()[0]
    except (psutil.Error, IndexError):
        return ""


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.5)
    return True


@contextlib.contextmanager
def _bystander(address: str) -> Generator[str]:
    """Yields the id of the placement group of another job of the cluster."""
    command = [sys.executable, "-c", BYSTANDER, address]
    process = subprocess.Popen(command, env={**ENVIRONMENT, **OPEN}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def _of(ill: Ill, number: int) -> list[Line]:
    return sessions_of(ill.lines())[number - 1]


class TestAtFault:
    """Trials that die on one node whatever their layout."""

    def test_the_session_ends_with_exit_code_3_and_names_the_node(self, ill: Ill) -> None:
        session_end, node = ill.sessions[0], ill.address.partition(":")[0]
        assert session_end.code == 3, session_end.err
        output = session_end.err.splitlines()[-1]
        reason = (
            f"cluster fault: 3 trials in a row ended without a message from their workers, all on node {node}, the last"
        )
        assert output.startswith(reason), output
        assert "go on with python -m platform.search --resume ill" in output and "Traceback" not in session_end.err

    def test_the_journal_has_it_and_no_layout_is_blamed(self, ill: Ill) -> None:
        lines = _of(ill, 1)
        ends = [line for line in lines if isinstance(line, TrialEnd)]
        assert [(end.state, end.fault) for end in ends] == [("interrupted", "died")] * 3
        assert isinstance(lines[-1], End) and lines[-1].exit_code == 3
        assert not any(isinstance(line, Measured) for line in lines)

    def test_nothing_of_its_trials_is_left(self, ill: Ill) -> None:
        assert not ill.leaked


class TestDriverKilled:
    """The cluster goes on, and so do others on it."""

    def test_nothing_of_its_job_is_left_and_nothing_of_another_s_is_touched(self, ill: Ill) -> None:
        assert ill.cleared and ill.bystander_lives


class TestHeadDead:
    """Without its head a cluster is none: the study ends by itself, and at once."""

    def test_it_ends_with_exit_code_3_and_says_so(self, ill: Ill) -> None:
        session_end = ill.sessions[2]
        assert session_end.code == 3, session_end.err
        output = session_end.err.splitlines()[-1]
        assert output.startswith(f"cluster fault: the cluster's head at {ill.address} has not answered for 1"), output
        assert "(Connection refused)" in output and "--resume ill" in output
        assert shows_a_result(session_end.out), "what was measured is shown"

    def test_the_journal_has_its_end_and_what_was_measured(self, ill: Ill) -> None:
        lines = _of(ill, 3)
        assert isinstance(lines[-1], End) and lines[-1].exit_code == 3
        assert all(measurement.outcome in RAN for measurement in ill.measured) and ill.measured
        assert (ill.path / "measurements.csv").exists()
        has_winner = StudyResult.of(ill.history).winners != []  # the head may be killed before a second layout ran
        assert (ill.path / "layout.json").exists() is has_winner
        assert (ill.path / NOTE).exists(), "the next session looks what it left"
