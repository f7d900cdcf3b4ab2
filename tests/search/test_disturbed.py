"""A real search beside processes that take the processors from it while its best run again."""

import multiprocessing
import os
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from platform.common.errors import NOT_RESOLVED
from platform.finals.contenders import contenders, named_winner
from tests.search.session import write_space
from tests.search.studies import FOUND, IN_ORDER, Run, nothing_twice, start
from trainers.journal import TrialStart
from trainers.measurement import Measurement

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]


def _compute() -> None:
    while True:
        pass


@contextmanager
def busy(num_processes: int) -> Generator[None]:
    """So many processes that compute all the time."""
    found = [multiprocessing.get_context("spawn").Process(target=_compute, daemon=True) for _ in range(num_processes)]
    for each in found:
        each.start()
    try:
        yield
    finally:
        for each in found:
            each.kill()
            each.join()


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two layouts searched alone; from the winner's last run on, three busy processes a processor run beside them."""
    folder = tmp_path_factory.mktemp("disturbed")
    space = write_space(
        folder / "tiny.py",
        hidden_size=64,
        seq_len=128,
        global_batch=32,  # more micro-steps than a search times: the winner has a last run
        micro_batches=(2,),
        axes={"checkpointing": ("none", "full"), "engine": ("ddp",)},
    )
    with start(folder, "busy", 1, str(space), "--name", "busy", *IN_ORDER) as session:
        session.wait_for(
            "the last run", lambda lines: any(isinstance(each, TrialStart) and each.repeat for each in lines)
        )
        with busy(3 * len(os.sched_getaffinity(0))):
            return Run(path=folder / "studies" / "busy", sessions=(session.end(),))


def _others_pct(measurement: Measurement) -> float:
    return sum(measurement.others_busy_pct) / len(measurement.others_busy_pct)


def test_it_names_a_winner_only_where_runs_beside_each_other_agree(disturbed: Run) -> None:
    (ended,) = disturbed.sessions
    best = named_winner(disturbed.measured)
    assert ended.code == (0 if best else NOT_RESOLVED), ended.err
    assert ("Not resolved between" in ended.out) is (best is None) and ("Fastest" in ended.out) is (best is not None)
    assert (disturbed.path / "layout.json").exists() is (best is not None)
    nothing_twice(disturbed)


def test_the_contenders_ran_in_turn(disturbed: Run) -> None:
    found = contenders(disturbed.measured)
    assert len(found) == 2, "both were far from what the search measured"
    rounds = [each for each in disturbed.measured if each.repeat > 1]
    assert len({each.layout for each in rounds}) == 2
    counts = [sum(each.layout == layout for each in rounds) for layout in {each.layout for each in rounds}]
    assert abs(counts[0] - counts[1]) <= 1


def test_what_the_machine_did_is_recorded_beside_the_figures_and_said(disturbed: Run) -> None:
    search = [_others_pct(each) for each in disturbed.measured if not each.repeat]
    again = [_others_pct(each) for each in disturbed.measured if each.repeat]
    assert min(again) > 30 and max(again) > max(search), "three busy processes a processor"
    assert all(each.load_average and len(each.steal_pct) == len(each.windows_s) for each in disturbed.measured)
    said = " ".join(disturbed.sessions[0].out.split())
    assert "the machine was disturbed" in said.lower() and "other processes" in said


def test_a_resumed_study_goes_on_with_the_contenders_on_the_quiet_machine(disturbed: Run) -> None:
    folder, before = disturbed.path.parent.parent, len(disturbed.measured)
    with start(folder, "busy", 2, "--resume", "busy") as session:
        ended = session.end()
    assert ended.code in FOUND, ended.err
    after = disturbed.measured
    if disturbed.sessions[0].code == NOT_RESOLVED:
        assert len(after) > before and all(each.repeat > 1 for each in after[before : before + 2])
    assert (disturbed.path / "layout.json").exists() is (ended.code == 0)
