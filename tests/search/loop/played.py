"""The command `platform.search` without Ray: options, studies, journals and reports are real, trials are played."""

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from platform.cluster.leftovers import Note
from platform.cluster.nodes import ClusterHandle
from platform.report.__main__ import main as report
from platform.search.__main__ import main
from platform.search.loop import tune
from platform.search.loop.loop import SearchLoop
from platform.search.loop.together import Together
from platform.search.session import session, session_run
from tests.search.loop.backend import CLUSTER, Backend, Clock, result
from trainers.records.job import Job
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint

SPEEDS = {1: 1000.0, 2: 1600.0}
"""Tokens/s of all devices, by their number."""


class Played:
    """Sessions with played trials; `cut` ends a session after a trial on that many devices, like Ctrl-C."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut: int | None = None
        self.jobs: list[Job] = []
        self.fastest = "none"
        """The checkpointing of the faster layout."""
        self.losses: Callable[[Job], tuple[float, ...] | None] = lambda job: (2.0, 1.0)
        """Losses of a numerics gate."""

    def run(self, loops: Sequence[SearchLoop], **_: object) -> None:
        together, clock = Together(loops), Clock()
        backends = {loop.study.name: Backend(loop.study, clock, self.play) for loop in loops}
        running: list[tuple[SearchLoop, Job]] = []
        while True:
            while (begun := together.next_job()) is not None:
                running.append(begun)
            if not running:
                return
            loop, job = running.pop(0)
            backend = backends[loop.study.name]
            backend.losses = self.losses
            state, reason = backend.begin(job)
            loop.on_trial_end(job.trial_id, state=state, reason=reason)
            self.jobs.append(job)
            if job.layout.world_size == self.cut:
                raise KeyboardInterrupt

    def play(self, job: Job, batch: BatchPoint) -> Measurement:
        slower = 1.0 if job.layout.checkpointing == self.fastest else 0.8
        return result(job, batch, slower * SPEEDS[job.layout.world_size])

    def search(self, *argv: str, as_object: bool = True) -> int:
        """Runs the command; returns its exit code. The result is one JSON object or a table."""
        self.jobs.clear()
        return main([*argv, "--studies", str(self.studies), *(["--json"] if as_object else [])])

    def report(self, name: str, *argv: str) -> int:
        """Runs `platform.report`; returns its exit code."""
        return report([name, "--studies", str(self.studies), "--no-mlflow", *argv])

    @property
    def studies(self) -> Path:
        return self.folder / "studies"

    @property
    def ran(self) -> list[int]:
        """Number of devices of each trial."""
        return [job.layout.world_size for job in self.jobs]


def disturbed(job: Job, batch: BatchPoint) -> Measurement:
    """Returns a measurement in which, in each new process, another of two layouts is slowed down, the leader first."""
    is_leader = job.layout.checkpointing == "none"
    is_slowed = job.repeat and (job.repeat + is_leader) % 2 == 0
    return result(job, batch, (1000.0 + is_leader) * (0.4 if is_slowed else 1.0), step_time_derived=not job.repeat)


def play_sessions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Makes the command play its trials until the end of the test, with studies in `folder`."""

    @contextlib.contextmanager
    def this_cluster(*_: object, **__: object) -> Generator[ClusterHandle]:
        yield ClusterHandle(cluster=CLUSTER, cpus_per_worker=1.0, driver_ip="127.0.0.1")

    @contextlib.contextmanager
    def no_recorder(journal: Path, state: Path) -> Generator[str]:
        yield "none"

    class NoMirror:
        """Replaces the MLflow mirror, whose database takes seconds to create; `tests/mirror` tests the mirror."""

        look = ""

        def __init__(self, *_: object) -> None: ...
        def start(self, **_: object) -> "NoMirror":
            return self

        def close(self, timeout_s: float, *_: object) -> str:
            return ""

    played = Played(folder)
    monkeypatch.setattr(session, "connected", this_cluster)
    monkeypatch.setattr(session, "Mirror", NoMirror)
    monkeypatch.setattr(tune, "recorder", no_recorder)
    monkeypatch.setattr(tune, "note_of", lambda **_: Note())
    monkeypatch.setattr(tune, "run", played.run)
    monkeypatch.setattr(session_run.head, "watched", lambda *_: contextlib.nullcontext())
    return played
