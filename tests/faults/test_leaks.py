"""The accounting itself: it reports a planted leak, and accuses no trial without one."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from platform.study.study import Study
from tests.faults.leaks import Accounts, gone
from tests.samples import header
from tests.search.loop.backend import LAYOUTS, RECIPE
from trainers.records.journal import End, Resume, RungStart, TrialEnd, TrialStart
from trainers.spec.batch import BatchPoint

WORKER = """
import subprocess, sys, time
held = open(sys.argv[1], "w")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def _begin(study: Study, number: int) -> None:
    trial_id, batch = f"t{number}", BatchPoint.of(RECIPE, LAYOUTS[0], 1)
    start = TrialStart(trial_id=trial_id, key="k", recipe=RECIPE, layout=LAYOUTS[0], micro_batches=(1,))
    study.record(start)
    study.record(RungStart(trial_id=trial_id, batch=batch, deadline_s=60))


@pytest.mark.parametrize("planted", [True, False])
def test_a_planted_leak_of_each_kind_is_found(tmp_path: Path, planted: bool) -> None:
    entry = Path(f"/dev/shm/layout-search-test-{os.getpid()}")
    groups = {"a1b2"}
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(entry)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    child = psutil.Process(int(worker.stdout.readline()))
    try:
        with Study.create(tmp_path, "leaky") as study:
            study.record(header("leaky", recipes=(RECIPE,)))
            accounts = Accounts(
                study.journal, lambda: [psutil.Process(worker.pid)] if worker.poll() is None else [], lambda: groups
            )
            _begin(study, 1)
            accounts.look()
            worker.kill()
            worker.wait()
            if not planted:
                child.kill()
                entry.unlink()
                groups.clear()
                assert gone([child], 60)
            study.record(TrialEnd(trial_id="t1", key="k", state="done", wall_s=1, gpu_s=2))
            assert accounts.leaked == []
            _begin(study, 2)
            accounts.look()
        kinds = {resource.kind for resource in accounts.held["t1"]} | {"process"}
        assert kinds == {"process", "shared memory", "placement group"} or planted
        leaks = [leak.rpartition(" left ")[2] for leak in accounts.leaked]
        expected = [f"shared memory {entry}", f"process {child.pid}", "placement group a1b2"]
        assert len(leaks) == (3 if planted else 0), leaks
        assert all(any(leak.startswith(want) for leak in leaks) for want in expected) == planted
    finally:
        entry.unlink(missing_ok=True)
        for process in (worker, child):
            with contextlib.suppress(psutil.NoSuchProcess):  # that was reaped just now
                process.kill()
        worker.wait()


def test_what_the_next_trial_holds_is_not_the_last_one_s(tmp_path: Path) -> None:
    """Checks the accounts where, while they ask for the placement groups, one trial ends and the next one makes its
    group.
    """
    groups = {"first"}

    with Study.create(tmp_path, "quick") as study:
        study.record(header("quick", recipes=(RECIPE,)))

        def slow() -> set[str]:
            if groups == {"first"} and accounts.held["t1"]:
                study.record(TrialEnd(trial_id="t1", key="k", state="done", wall_s=1, gpu_s=2))
                groups.clear()
                groups.add("second")
                _begin(study, 2)
            return set(groups)

        accounts = Accounts(study.journal, list, slow)
        _begin(study, 1)
        for _ in range(3):
            accounts.look()
        assert {resource.id for resource in accounts.held["t1"]} == {"first"}
        assert {resource.id for resource in accounts.held["t2"]} == {"second"}
        _begin(study, 3)
        accounts.look()
        assert accounts.leaked == ["t2 left placement group second"]


def test_the_end_of_an_earlier_session_is_not_this_one_s(tmp_path: Path) -> None:
    """Checks the accounts of a resumed study, whose journal begins with a session that ended."""

    def soon(true: Callable[[], object]) -> bool:
        until_s = time.monotonic() + 300
        while not true() and time.monotonic() < until_s:
            time.sleep(0.1)
        return bool(true())

    with Study.create(tmp_path, "again") as study:
        study.record(header("again", recipes=(RECIPE,)))
        study.record(End(exit_code=130, wall_s=1, gpu_s=2))
        with Accounts(study.journal, list, lambda: {"left"}) as accounts:
            study.record(Resume())
            _begin(study, 1)
            assert soon(lambda: accounts.held.get("t1"))
            study.record(TrialEnd(trial_id="t1", key="k", state="done", wall_s=1, gpu_s=2))
            _begin(study, 2)
            assert soon(lambda: accounts.leaked)
    assert accounts.leaked == ["t1 left placement group left"]
