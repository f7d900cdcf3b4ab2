"""Compares a search that is disturbed with one that is not: do both end with the same winner? Run

python -m benchmarks.disturbed_search NAME SPACE [--runs N] [options of platform.search]

Two studies of the same options. NAME-calm is left alone. In NAME-disturbed a train worker gets SIGKILL in the middle of
a rung, once something was measured, and then the driver, in a later rung; `--resume` goes on. Where their winners are
two points, NAME-winners runs these again in turn (A B B A, in fresh processes). A command that was cut short goes on
where it stopped: a study that ended by itself is not run again. A cap, as in `--device-memory-gib 40`, makes layouts
run out of memory besides. With `--time-budget-s` each study has so many seconds in all its sessions.
"""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.winners import TITLES, arguments, in_turn, point_of, read_options, search, table_row
from platform.search.loop.policy import Kind
from platform.study.journal import JOURNAL, Tail
from platform.study.study import is_study, read
from trainers.records.journal import End, Line, Measured, Resume, RungStart, TrialEnd
from trainers.records.measurement import Outcome

WORKER = "RayTrainWorker"
INTO_A_RUNG_S = 2.0
"""Seconds after a rung's begin at which its steps run."""
WORKER_DIES, DRIVER_DIES = "a train worker", "the driver"
MEASURED_BEFORE = {WORKER_DIES: 1, DRIVER_DIES: 2}
"""Victims of SIGKILL, in this order, with the measurements that the journal has by then: a guided search may end after
three.
"""
LONGEST_S = 900.0


def main() -> int:
    """Runs what is missing of the studies, then prints them beside each other; exit code 1 where a figure was lost, or
    where the search ended before it could be disturbed.
    """
    options, of_search = read_options((__doc__ or "").splitlines()[0])
    studies: Path = options.studies
    begin = [options.space, "--repeats", "0"]
    names = [f"{options.name}-{kind}" for kind in ("calm", "disturbed")]
    began_s = time.monotonic()
    calm = search(studies, names[0], begin, of_search)
    calm_s = time.monotonic() - began_s

    began_s, log, measured_before = time.monotonic(), list[str](), set[str]()
    if not is_study(studies / names[1]):
        log = disturb(studies, names[1], begin, of_search)
        measured_before = _measured(studies / names[1])
    disturbed = search(studies, names[1], begin, of_search, spent_s=time.monotonic() - began_s)
    disturbed_s = time.monotonic() - began_s

    print("\n".join([TITLES, table_row("calm", calm), table_row("disturbed", disturbed)]))
    print(f"wall seconds of this command: {calm_s:.0f} calm, {disturbed_s:.0f} disturbed; both sessions of it")
    lost_ids = measured_before - _measured(studies / names[1])
    if measured_before:
        print(
            "\n".join(
                [*log, f"of {len(measured_before)} measurements that the first session left, {len(lost_ids)} were lost"]
            )
        )
    if point_of(calm) == point_of(disturbed):
        print("both found the same point")
    else:
        in_turn(studies, names, f"{options.name}-winners", runs=options.runs, options=of_search)
    if spared := spared_in(studies / names[1]):
        print(
            f"{names[1]} is not wholly disturbed: its search ended before {' and '.join(spared)} could be killed."
            " Begin again under another name, with more layouts or more time",
            file=sys.stderr,
        )
    return 1 if lost_ids or spared else 0


def disturb(studies: Path, name: str, begin: Sequence[str], options: Sequence[str]) -> list[str]:
    """Begins the study, kills one of its workers and then its driver; returns what was done, a line each.

    A search that ends before is left alone.
    """
    command = [sys.executable, "-m", "platform.search", *arguments(studies, name, begin, options)]
    began_s = time.monotonic()
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    log: list[str] = []
    rungs = _rungs(driver, studies / name / JOURNAL)
    for target, threshold in MEASURED_BEFORE.items():
        for num_measured, rung in rungs:
            if num_measured < threshold:
                continue
            time.sleep(INTO_A_RUNG_S)
            if _kill(target, driver):
                moment = f"{time.monotonic() - began_s:.0f} s after the start, in trial {rung.trial_id}"
                log.append(
                    f"{target} got SIGKILL {moment} at micro-batch {rung.batch.micro_batch},"
                    f" {num_measured} measured before"
                )
                print(log[-1], file=sys.stderr)
                break
    driver.kill()  # one that lasts too long
    driver.wait()
    return log


def _kill(target: str, driver: subprocess.Popen[bytes]) -> bool:
    """Sends SIGKILL; returns False where the victim had ended."""
    if target == DRIVER_DIES:
        driver.kill()
        return driver.wait() < 0
    with contextlib.suppress(IndexError, psutil.NoSuchProcess):
        _workers(driver.pid)[-1].kill()
        return True
    return False


def spared_in(study: Path) -> list[str]:
    """Returns which of the intended victims lived on, by the study's journal."""
    lines = Tail(study / JOURNAL).read()
    died = {
        WORKER_DIES: any(isinstance(line, TrialEnd) and line.fault and Kind(line.fault).unexplained for line in lines),
        DRIVER_DIES: any(
            isinstance(line, Resume) and not isinstance(before, End) for before, line in itertools.pairwise(lines)
        ),
    }
    return [target for target in MEASURED_BEFORE if not died[target]]


def _rungs(driver: subprocess.Popen[bytes], journal: Path) -> Iterator[tuple[int, RungStart]]:
    """Yields each rung as it begins, with the number of measurements that the journal has by then; ends with the
    search.

    Where a rung's measurement is there before it was looked at, it is over and not given.
    """
    tail, num_measured, until_s = Tail(journal), 0, time.monotonic() + LONGEST_S
    while driver.poll() is None and time.monotonic() < until_s:
        rung: RungStart | None = None
        for line in tail.read():
            if _is_figure(line):
                num_measured += 1
                rung = None
            elif isinstance(line, RungStart):
                rung = line
        if rung is not None:
            yield num_measured, rung
        time.sleep(0.05)


def _is_figure(line: Line) -> bool:
    return isinstance(line, Measured) and line.measurement.outcome is not Outcome.SKIPPED


def _workers(driver: int) -> list[psutil.Process]:
    """Returns the train workers of the running trial, oldest first; a Ray of the driver's own descends from it."""
    workers = [
        child for child in psutil.Process(driver).children(recursive=True) if WORKER in " ".join(child.cmdline()[:1])
    ]
    return sorted(workers, key=lambda worker: worker.create_time())


def _measured(study: Path) -> set[str]:
    """Returns the ids of what the journal has figures of."""
    return {measurement.id for measurement in read(study)[0].measurements if measurement.outcome is not Outcome.SKIPPED}


if __name__ == "__main__":
    sys.exit(main())
