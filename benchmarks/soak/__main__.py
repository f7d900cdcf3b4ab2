"""Random faults over resumed searches on CPU workers, and what of them was lost, run twice or left behind. Run

python -m benchmarks.soak --minutes 60 [--seed 0] [--faults "worker killed,disk full"]

A study is a search of four layouts at two micro-batches. Each of its sessions meets one fault at a random moment, and
the next one resumes it, until one comes to its end; after six faults the study is left alone. Faults come in a random
order, each once before any comes again. Wanted are zeros: exit code 0, else 1. A full disk needs root, who mounts a
small one; the clock jumps for Python in the search's processes alone (`benchmarks/soak/clock.py`).
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import search_spaces
from benchmarks.soak.clock import Clock
from benchmarks.soak.faults import FAULTS, Deck, Scene, Server
from benchmarks.soak.tally import Tally
from tests.disks import small_disk
from tests.faults import leaks
from tests.search.session import Ended, write_space
from tests.search.studies import FOUND, SLOW, num_rungs, start
from trainers.values.journal import Line, Measured

_FAULTS_A_STUDY = 6
_ALONE = 3
"""Sessions without a fault after which a study must have come to its end."""
_DISK_MIB = 256
_DRIVER_KILLED = -9
_ENDS = frozenset({*FOUND, 3})
"""Exit codes of a session whose driver was not killed: a result, or a cluster's fault."""


class Soak:
    """A soak that runs; `tally` is what it found."""

    def __init__(self, folder: Path, rng: random.Random, names: Sequence[str]) -> None:
        """Starts MLflow in `folder`, where all of the soak's files are, and makes the clock."""
        self.tally = Tally()
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

    def run(self, until_s: float) -> None:
        """Hurts study after study until that time of the monotonic clock."""
        while time.monotonic() < until_s:
            self._study(f"soak{self.tally.studies}", until_s)

    def _study(self, name: str, until_s: float) -> None:
        folder = self._folder / name
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        axes = {"engine": ("ddp",), "bucket_mib": (0, 8), "checkpointing": ("none", "full")}
        space = write_space(folder / "space.py", axes=axes, repeats=1, hang_floor_s=15.0, **SLOW)
        argv = (str(space), "--name", name, "--searcher", self._rng.choice(("sweep", "guided")))
        seen, held = set[str](), set[leaks.Held]()
        hurt = alone = 0
        lines: Sequence[Line] = ()
        with small_disk(folder / "studies", _DISK_MIB) if self._may_mount else contextlib.nullcontext():
            journal = folder / "studies" / name / "journal.jsonl"
            while alone < _ALONE:
                fault = self._deck.draw() if hurt < _FAULTS_A_STUDY and time.monotonic() < until_s else ""
                again = ("--resume", name) if journal.exists() else argv
                ended, lines = self._session(folder, name, again, fault, seen, held)
                hurt, alone = (hurt + 1, 0) if fault else (hurt, alone + 1)
                if ended is not None and ended.code in FOUND:
                    break
            else:
                self.tally.odd.append(f"{name} came to no end in {_ALONE} sessions without a fault")
            self.tally.take_journal(name, lines, seen, search_spaces.load(str(space)).candidates(2)[0])
            self.tally.take_remains(name, held, journal.parent, temporary)

    def _session(
        self, folder: Path, name: str, argv: Sequence[str], fault: str, seen: set[str], held: set[leaks.Held]
    ) -> tuple[Ended | None, Sequence[Line]]:
        """Runs a session that meets the fault; returns how it ended, None where it left processes, and the journal."""
        environment = {"TMPDIR": str(folder / "tmp"), "MLFLOW_TRACKING_URI": self.server.uri}
        environment |= self._clock.environment if self._clock else {}
        number, began_s = self.tally.sessions, time.monotonic()
        self.tally.sessions += 1
        ended = None
        with (
            start(folder, name, number, *argv, environment=environment) as session,
            leaks.of(session) as accounts,
        ):
            scene = Scene(session, folder / "studies", self.server, self._clock, self._rng)
            met = self._hurt(scene, fault) if fault else False
            seen |= {line.measurement.id for line in session.lines() if isinstance(line, Measured)}
            try:
                ended = session.end()
            except AssertionError as error:
                self.tally.left.append(f"{name}, session {number}, {fault or 'no fault'}: {error}")
            scene.mend()
            lines = session.lines()
        held |= {each for of_trial in accounts.held.values() for each in of_trial}
        self.tally.left += [f"{name}, session {number}: {each}" for each in accounts.left]
        self.tally.faults[fault] += met
        code = ended.code if ended is not None else None
        took_s = time.monotonic() - began_s
        print(f"{name} session {number}: {fault or 'no fault'}{'' if met or not fault else ' (too late)'}; "
              f"exit code {code} after {took_s:.0f} s", flush=True)  # fmt: skip
        if ended is not None:
            self._judge(f"{name}, session {number}, {fault or 'no fault'}", ended, fault)
        seen |= {line.measurement.id for line in lines if isinstance(line, Measured)}
        return ended, lines

    def _hurt(self, scene: Scene, fault: str) -> bool:
        """Does it at a random moment, while Ray starts or from a rung on; returns whether the search still ran."""
        before = num_rungs(scene.session.lines())
        if self._rng.random() < 0.2:
            scene.wait_until(lambda: False, self._rng.uniform(0, 15))
        elif scene.wait_until(lambda: num_rungs(scene.session.lines()) > before, 600):
            scene.wait_until(lambda: False, self._rng.uniform(0, 6))
        return scene.session.process.poll() is None and FAULTS[fault](scene)

    def _judge(self, where: str, ended: Ended, fault: str) -> None:
        wanted = {*_ENDS, _DRIVER_KILLED} if fault == "driver killed" else _ENDS
        if ended.code not in wanted:
            self.tally.odd.append(f"{where}: exit code {ended.code}: {' | '.join(ended.err.splitlines()[-3:])}")
        if "Traceback" in ended.err:
            self.tally.odd.append(f"{where}: a traceback: {ended.err}")


def main(argv: Sequence[str] | None = None) -> int:
    """Soaks for the time asked, prints the tally; the exit code is 1 unless all of it is zero."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further fault is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", default=",".join(FAULTS), help="of these alone, by their names, with commas")
    options = parser.parse_args(argv)
    names = options.faults.split(",")
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"--faults knows {', '.join(FAULTS)}; got {unknown[0]!r}")
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    began_s = time.monotonic()
    soak = Soak(folder, random.Random(options.seed), names)
    try:
        soak.run(began_s + 60 * options.minutes)
    finally:
        soak.server.end()
        minutes = (time.monotonic() - began_s) / 60
        print(f"{minutes:.1f} minutes, seed {options.seed}, {os.cpu_count()} cores\n{soak.tally}")
    if soak.tally.is_clean:
        shutil.rmtree(folder)
    else:
        print(f"logs and journals are kept in {folder}")
    return 0 if soak.tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
