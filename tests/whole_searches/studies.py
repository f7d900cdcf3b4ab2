"""Studies that tests run in one or several sessions, and checks that hold for all of them."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from platform.common.errors import NOT_RESOLVED
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.study import read
from tests.whole_searches.session import Ended, Session
from trainers.records.journal import Line, Measured, Resume, RungStart, StudyHeader, TrialEnd, TrialStart
from trainers.records.measurement import Measurement, Outcome

SLOW = {"hidden_size": 256, "vocab_size": 8192, "seq_len": 512}
"""A model with steps of half a second, so that a test can act in the middle of a rung."""
IN_ORDER = ("--searcher", "sweep")
"""Options that try layouts in order, so that a test knows the layout into which it injects a fault."""
WITHOUT_MLFLOW = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}
"""The environment of a search whose test does not ask for MLflow: a port without a listener, and no store, whose
creation takes seconds.
"""
ANSWERED = frozenset({0, NOT_RESOLVED})
"""Exit codes of a search that measured layouts. The other load of the machine decides which of the two ends a search of
small layouts, so tests of other things accept both.
"""
_ANSWERS = "Fastest|Not resolved between|Measured one layout"
RAN = frozenset({Outcome.OK, Outcome.SLOW})
"""Outcomes of a rung that ran. The load of the machine during the best rung so far decides which of the two a rung
gets; no test may require one of them.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A study after some sessions."""

    path: Path
    sessions: tuple[Ended, ...]

    @property
    def history(self) -> History:
        return read(self.path, last=True)[0]

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """The measurements that ran, in the order of the journal."""
        return tuple(
            measurement for measurement in self.history.measurements if measurement.outcome is not Outcome.SKIPPED
        )

    def lines(self) -> list[Line]:
        """Returns every readable line of the journal."""
        return Tail(self.path / "journal.jsonl").read(last=True)


def sessions_of(lines: Sequence[Line]) -> list[list[Line]]:
    """Returns the lines of each session."""
    sessions: list[list[Line]] = []
    for line in lines:
        if isinstance(line, (StudyHeader, Resume)):
            sessions.append([])
        sessions[-1].append(line)
    return sessions


def shows_a_result(out: str) -> bool:
    """Returns whether the output of a study of the model "tiny" names a winner, the unresolved layouts, or the only
    measured layout.
    """
    return re.search(rf"^({_ANSWERS})\b.*? for\s+tiny", out, re.MULTILINE | re.DOTALL) is not None


def nothing_twice(run: Run) -> None:
    """Checks that no measurement is recorded twice, and that no finished rung started again."""
    assert run_twice(run.lines()) == []


def run_twice(lines: Sequence[Line]) -> list[str]:
    """Returns a sentence for each measurement that is recorded twice and each finished rung that started again."""
    repeated: list[str] = []
    ids, measured_points = set[str](), set[tuple[str, int, int]]()
    trials: dict[str, TrialStart] = {}
    for line in lines:
        if isinstance(line, TrialStart):
            trials[line.trial_id] = line
        elif isinstance(line, RungStart):
            trial = trials[line.trial_id]
            if (trial.key, line.batch.micro_batch, trial.repeat) in measured_points:
                repeated.append(f"{trial.trial_id} runs {trial.layout.label} at {line.batch.micro_batch} once more")
        elif isinstance(line, Measured):
            measurement, trial = line.measurement, trials.get(line.measurement.trial_id)
            if measurement.id in ids:
                repeated.append(f"{measurement.id} was recorded twice")
            ids.add(measurement.id)
            if trial is not None:
                measured_points.add((trial.key, measurement.batch.micro_batch, measurement.repeat))
    return repeated


def all_ran(lines: Sequence[Line], micro_batches: Sequence[int], *, num_layouts: int) -> None:
    """Checks that every layout's ladder ran upwards, each rung once, unless its trial skipped the rest as hopeless.

    A trial does so if the machine is twice as busy as it was during the best rung so far.
    """
    finished_ids = {line.trial_id for line in lines if isinstance(line, TrialEnd) and line.state == "done"}
    ladders: defaultdict[str, list[Measurement]] = defaultdict(list)
    for line in lines:
        if isinstance(line, Measured) and not line.measurement.repeat:
            ladders[line.measurement.layout.id].append(line.measurement)
    assert len(ladders) == num_layouts
    for ladder in ladders.values():
        points = [measurement.batch.micro_batch for measurement in ladder]
        assert points == list(micro_batches)[: len(points)] and {measurement.outcome for measurement in ladder} <= RAN
        assert len(points) == len(micro_batches) or ladder[-1].trial_id in finished_ids


def start(folder: Path, name: str, number: int, *argv: str, address: str = "local", **options: Any) -> Session:
    """Starts another session of the study `name` in `folder`; `how` as in `Session`."""
    places = ("--studies", str(folder / "studies"), "--address", address)
    log, journal = folder / f"log-{name}-{number}", folder / "studies" / name / "journal.jsonl"
    return Session(log, journal, *places, *argv, **options)  # a command's words end the line


def in_rung(lines: Sequence[Line], *, trial: int, micro_batch: int) -> bool:
    """Returns whether the study's `trial`-th trial is in this rung."""
    trials = [line.trial_id for line in lines if isinstance(line, TrialStart)]
    rungs = [(line.trial_id, line.batch.micro_batch) for line in lines if isinstance(line, RungStart)]
    return len(trials) == trial and (trials[-1], micro_batch) in rungs


def num_rungs(lines: Sequence[Line]) -> int:
    """Returns the number of rungs begun so far."""
    return sum(isinstance(line, RungStart) for line in lines)


def after_cpu_s(worker: psutil.Process, seconds: float) -> Callable[[Sequence[Line]], bool]:
    """Returns a condition that is true once the worker has computed this much longer: after a rung's first step, which
    may take minutes.
    """

    def spent_s() -> float:
        times = worker.cpu_times()
        return times.user + times.system

    before_s = spent_s()
    return lambda lines: spent_s() - before_s > seconds
