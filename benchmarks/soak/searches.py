"""Soaks searches: studies whose sessions meet faults at random moments.

A study is a search of four layouts at two micro-batches. Its sessions meet faults until one of them ends the session;
the next one resumes it, until one comes to its end. After six faults a study is left alone.
"""

import contextlib
import dataclasses
import itertools
import os
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import search_spaces
from benchmarks.soak.clock import Clock
from benchmarks.soak.faults import FAULTS, Deck, Scene, Server
from benchmarks.soak.tally import Tally
from platform.cluster.leftovers import NOTE, SCRATCH
from search_spaces.candidate import Candidate
from tests.disks import small_disk
from tests.faults import leaks
from tests.whole_searches.session import Ended, write_space
from tests.whole_searches.studies import ANSWERED, SLOW, num_rungs, run_twice, start
from trainers.records.journal import Line, Measured, RungStart

_FAULTS_A_STUDY = 6
_ALONE = 3
"""Sessions without a fault after which a study must have ended."""
_DISK_MIB = 256
_DRIVER_KILLED = -9
_ENDS = frozenset({*ANSWERED, 3})
"""Exit codes of a session whose driver was not killed: a result, or a cluster's fault."""


@dataclasses.dataclass(kw_only=True, slots=True)
class SoakedStudy:
    """A study of the soak, with its observations so far."""

    name: str
    folder: Path
    until_s: float
    """No fault is begun after that time of the monotonic clock."""
    lines: Sequence[Line] = ()
    seen_ids: set[str] = dataclasses.field(default_factory=set[str])
    """Ids of the measurements that the journal ever held."""
    held_resources: set[leaks.Held] = dataclasses.field(default_factory=set[leaks.Held])
    num_faults: int = 0
    """Number of faults injected into it."""
    num_faultless: int = 0
    """Number of sessions since the last one with a fault."""

    @property
    def journal(self) -> Path:
        """The study's journal."""
        return self.folder / "studies" / self.name / "journal.jsonl"

    def look(self, lines: Sequence[Line]) -> None:
        """Records the measurements that the journal holds now."""
        self.lines = lines
        self.seen_ids |= {line.measurement.id for line in lines if isinstance(line, Measured)}


class SearchSoak:
    """A running soak; `tally` has its findings."""

    def __init__(self, folder: Path, rng: random.Random, names: Sequence[str]) -> None:
        """Starts MLflow in `folder`, where all of the soak's files are, and makes the clock."""
        self.tally = Tally(lost_title="measurements lost", again_title="measurements run twice")
        self._folder, self._rng = folder, rng
        try:
            self._clock = Clock(folder)
        except OSError as error:
            print(f"without jumps of the clock: {error}")
            self._clock = None
        self._may_mount = os.geteuid() == 0
        if not self._may_mount:
            print("without full disks: only root mounts a small one")
        can = {"clock jumps": self._clock is not None, "disk full": self._may_mount}
        self._deck = Deck([name for name in names if can.get(name, True)], rng)
        self.server = Server(folder)

    def run(self, seconds: float) -> None:
        """Injects faults into study after study for so many seconds."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._study(f"soak{self.tally.counts['studies']}", until_s)

    def end(self) -> None:
        """Kills the server."""
        self.server.end()

    def _study(self, name: str, until_s: float) -> None:
        folder = self._folder / name
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        axes = {"engine": ("ddp",), "bucket_mib": (0, 8), "checkpointing": ("none", "full")}
        space = write_space(folder / "space.py", axes=axes, repeats=1, hang_floor_s=15.0, **SLOW)
        argv = (str(space), "--name", name, "--searcher", self._rng.choice(("sweep", "guided")))
        study = SoakedStudy(name=name, folder=folder, until_s=until_s)
        with small_disk(folder / "studies", _DISK_MIB) if self._may_mount else contextlib.nullcontext():
            while study.num_faultless < _ALONE:
                session_end = self._session(study, ("--resume", name) if study.journal.exists() else argv)
                if session_end is not None and session_end.code in ANSWERED:
                    break
            else:
                self.tally.odd.append(f"{name} came to no end in {_ALONE} sessions without a fault")
            planned = search_spaces.load(str(space)).candidates(2)[0]
            self._take_journal(name, study.lines, study.seen_ids, planned)
            self._take_remains(name, study.held_resources, study.journal.parent, temporary)

    def _session(self, study: "SoakedStudy", argv: Sequence[str]) -> Ended | None:
        """Runs a session with faults; returns how it ended, None where it left processes behind."""
        environment = {"TMPDIR": str(study.folder / "tmp"), "MLFLOW_TRACKING_URI": self.server.uri}
        environment |= self._clock.environment if self._clock else {}
        number, began_s = self.tally.counts["sessions"], time.monotonic()
        self.tally.counts["sessions"] += 1
        session_end = None
        with (
            start(study.folder, study.name, number, *argv, environment=environment) as session,
            leaks.of(session) as accounts,
        ):
            scene = Scene(session, study.folder / "studies", self.server, self._clock, self._rng)
            faults = self._inject_faults(scene, study)
            session_text = f"{study.name}, session {number} ({', '.join(faults) or 'no fault'})"
            study.look(session.lines())
            try:
                session_end = session.end()
            except AssertionError as error:
                self.tally.left.append(f"{session_text}: {error}")
            scene.mend()
            study.look(session.lines())
        study.held_resources |= {resource for of_trial in accounts.held.values() for resource in of_trial}
        study.num_faults, study.num_faultless = study.num_faults + len(faults), 0 if faults else study.num_faultless + 1
        self.tally.left += [f"{session_text}: {leak}" for leak in accounts.leaked]
        self.tally.faults.update(faults)
        code = "none" if session_end is None else session_end.code
        print(f"{session_text}: exit code {code} after {time.monotonic() - began_s:.0f} s", flush=True)
        if session_end is not None:
            killed = {_DRIVER_KILLED} if "driver killed" in faults else set[int]()
            self.tally.judge(session_text, session_end.code, {*_ENDS, *killed}, session_end.err)
        return session_end

    def _inject_faults(self, scene: Scene, study: "SoakedStudy") -> list[str]:
        """Injects faults while the session runs, at random moments of its rungs, or first of Ray's start; returns the
        faults.
        """
        faults: list[str] = []
        while study.num_faults + len(faults) < _FAULTS_A_STUDY and scene.runs and time.monotonic() < study.until_s:
            before = num_rungs(scene.session.lines())
            if not faults and self._rng.random() < 0.2:
                scene.let_pass(self._rng.uniform(0, 15))
            elif scene.wait_until(lambda before=before: num_rungs(scene.session.lines()) > before, 600):
                scene.let_pass(self._rng.uniform(0, 6))
            if scene.runs:
                fault = self._deck.draw()
                if FAULTS[fault](scene):
                    faults.append(fault)
        return faults

    def _take_journal(self, name: str, lines: Sequence[Line], seen_ids: set[str], planned: Iterable[Candidate]) -> None:
        """Counts what the journal of a finished study records; `seen_ids` are measurements that it once held."""
        measured = [line.measurement for line in lines if isinstance(line, Measured)]
        self.tally.counts["studies"] += 1
        self.tally.counts["measurements"] += len(measured)
        self.tally.lost += [
            f"{name}: {seen_id} was in the journal and is gone" for seen_id in seen_ids - {m.id for m in measured}
        ]
        measured_layouts = {(measurement.recipe.id, measurement.layout.id) for measurement in measured}
        never = [
            candidate for candidate in planned if (candidate.recipe.id, candidate.layout.id) not in measured_layouts
        ]
        self.tally.lost += [f"{name}: {candidate.layout.label} was never measured" for candidate in never]
        self.tally.lost += [f"{name}: {sentence}" for sentence in unrecorded(lines)]
        self.tally.again += [f"{name}: {sentence}" for sentence in run_twice(lines)]

    def _take_remains(self, name: str, held_resources: Iterable[leaks.Held], study: Path, temporary: Path) -> None:
        """Counts what a finished study left: what its trials held, its note, partly written files, folders."""
        self.tally.left += [
            f"{name}: {held_resource.kind} {held_resource.id}"
            for held_resource in held_resources
            if held_resource.is_left(())
        ]
        files = [study / NOTE, *study.glob(".*.part"), *temporary.glob(f"{SCRATCH}*")]
        self.tally.left += [f"{name}: {path}" for path in files if path.exists()]


def unrecorded(lines: Sequence[Line]) -> list[str]:
    """Returns a sentence for each rung that its trial went on from though the journal lacks its measurement."""
    rungs: dict[str, list[int]] = {}
    for line in lines:
        if isinstance(line, RungStart):
            rungs.setdefault(line.trial_id, []).append(line.batch.micro_batch)
    measured = [line.measurement for line in lines if isinstance(line, Measured)]
    recorded = {(measurement.trial_id, measurement.batch.micro_batch) for measurement in measured}
    return [
        f"{trial_id} went on from micro-batch {finished}, of which nothing was recorded"
        for trial_id, climbed in rungs.items()
        for finished, _ in itertools.pairwise(climbed)
        if (trial_id, finished) not in recorded
    ]
