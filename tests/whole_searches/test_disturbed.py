"""A real search whose processors other processes use while its best layout has its last run."""

import os
import statistics
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import pytest

from platform.common.errors import NOT_RESOLVED
from tests.samples import result_of
from tests.whole_searches.session import write_space
from tests.whole_searches.studies import IN_ORDER, Run, nothing_twice, start
from trainers.records.journal import Line, Measured, RungStart, TrialStart
from trainers.records.measurement import Measurement

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

BUSY = 10
"""Busy processes for each processor: a worker has a small part of what it had, on a machine of some load too."""


@contextmanager
def waiting(num_processes: int) -> Generator[tuple[Callable[[], None], Callable[[], None]]]:
    """Yields that many processes, and functions that let all compute at once and that end them: to start them takes
    longer than a rung.

    Each has a session of its own: Linux may share processors out among sessions, whatever runs in them.
    """
    reading, writing = os.pipe()
    command = ["sh", "-c", "read _; while :; do :; done"]
    loops = [subprocess.Popen(command, stdin=reading, start_new_session=True) for _ in range(num_processes)]
    os.close(reading)

    def end() -> None:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()

    try:
        yield lambda: os.close(writing), end
    finally:
        end()


def _last_run(lines: Sequence[Line]) -> str | None:
    """Returns the id of the trial that is the winner's last run, once there is one."""
    return next((line.trial_id for line in lines if isinstance(line, TrialStart) and line.repeat == 1), None)


def _has_begun(lines: Sequence[Line]) -> bool:
    return any(isinstance(line, RungStart) and line.trial_id == _last_run(lines) for line in lines)


def _has_ended(lines: Sequence[Line]) -> bool:
    return any(isinstance(line, Measured) and line.measurement.repeat == 1 for line in lines)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns a search of two layouts, alone at first; while the first one's last run is timed, the machine is busy."""
    folder = tmp_path_factory.mktemp("disturbed")
    space = write_space(
        folder / "tiny.py",
        hidden_size=64,
        seq_len=128,
        global_batch=32,  # more micro-steps than a search times: the winner has a last run
        micro_batches=(2,),
        axes={"engine": ("ddp",), "bucket_mib": (0, 7)},  # as fast as each other; one may be `slow` by load
    )
    arguments = ("--name", "busy", "--time-budget-s", "200", *IN_ORDER)
    with (
        waiting(BUSY * len(os.sched_getaffinity(0))) as (compute, end),
        start(folder, "busy", 1, str(space), *arguments) as session,
    ):
        session.wait_for("the last run's rung", _has_begun)
        compute()
        session.wait_for("the last run's end", _has_ended)
        end()
        return Run(path=folder / "studies" / "busy", sessions=(session.end(),))


def _others_pct(measurement: Measurement) -> float:
    return statistics.fmean(measurement.others_busy_pct)


def test_the_last_run_is_told_from_what_the_search_measured(disturbed: Run) -> None:
    until_then = [measurement for measurement in disturbed.measured if measurement.repeat <= 1]
    assert len(until_then) == 3 and len(result_of(until_then).of_study[0].contenders) == 2


def test_the_contenders_run_in_turn(disturbed: Run) -> None:
    rounds = [measurement for measurement in disturbed.measured if measurement.repeat > 1]
    counts = [
        sum(measurement.layout == layout for measurement in rounds)
        for layout in {measurement.layout for measurement in disturbed.measured}
    ]
    assert abs(counts[0] - counts[1]) <= 1
    assert rounds or disturbed.sessions[0].code == NOT_RESOLVED, "the budget ended right then"
    nothing_twice(disturbed)


def test_it_names_a_winner_only_where_runs_beside_each_other_agree(disturbed: Run) -> None:
    (session_end,) = disturbed.sessions
    best = result_of(disturbed.measured).of_study[0].winner
    assert session_end.code == (0 if best else NOT_RESOLVED), session_end.err
    assert ("Not resolved between" in session_end.out) is (best is None)
    assert ("Fastest of 2 layouts tried for" in session_end.out) is (best is not None)
    assert (disturbed.path / "layout.json").exists() is (best is not None)


def test_what_the_machine_did_is_recorded_beside_the_figures_and_said(disturbed: Run) -> None:
    search = [_others_pct(measurement) for measurement in disturbed.measured if not measurement.repeat]
    (last,) = (_others_pct(measurement) for measurement in disturbed.measured if measurement.repeat == 1)
    assert last > 60 and last > statistics.fmean(search)
    assert all(
        measurement.load_average and len(measurement.steal_pct) == len(measurement.windows_s)
        for measurement in disturbed.measured
    )
    (session_end,) = disturbed.sessions
    if session_end.code == NOT_RESOLVED:
        output = " ".join(session_end.out.split())
        assert "the machine was disturbed" in output and "other processes took" in output
