"""Injects random faults into resumed trainings on CPU workers, and compares each with one that nothing disturbed. Run

python -m benchmarks.soak.trainings --minutes 60 [--seed 0] [--faults "worker killed,disk full"]

A training of a small model meets up to six faults at random moments; what ended is begun again by the same command,
until it is trained. Then its losses are those of the undisturbed training, bit for bit, or within 1e-5 where its number
of workers was another one for a while. Wanted are zeros: exit code 0, else 1. A full disk and a read-only folder need
root.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soak.faults import Deck
from benchmarks.soak.training_faults import FAULTS, TrainingScene, Unwell
from platform.train.training_folder import TrainingFolder, steps_of
from tests.disks import small_disk
from tests.training.layout_file import write_layout
from tests.training.values import DDP, RECIPE, STEP
from tests.whole_searches.session import Session
from trainers.records import checkpoints
from trainers.records.training import Begun
from trainers.records.training_files import CHECKPOINTS
from trainers.records.training_lines import Reader
from trainers.spec.layout import Layout

_STEPS = 600
_CHECKPOINT_STEPS = 10
_FAULTS_A_TRAINING = 6
_ALONE = 3
"""Sessions without a fault after which a training must be complete."""
_DISK_MIB = 64
_WORKERS = {1: Layout(engine="ddp"), 2: DDP, 4: Layout(engine="ddp", dp_replicate=4)}
_TOLERANCE = 1e-5
"""Relative difference of a loss in fp32 where sums were taken over other numbers of workers."""


@dataclasses.dataclass(slots=True)
class TrainingTally:
    """Counts over all trainings; each list holds a sentence for each case, and is empty where all went well."""

    faults: Counter[str] = dataclasses.field(default_factory=Counter[str])
    trainings: int = 0
    sessions: int = 0
    attempts: int = 0
    lost: list[str] = dataclasses.field(default_factory=list[str])
    """Attempts that began before the newest whole checkpoint."""
    samples: list[str] = dataclasses.field(default_factory=list[str])
    """Steps that were trained twice or skipped, and losses that are others than undisturbed."""
    left: list[str] = dataclasses.field(default_factory=list[str])
    odd: list[str] = dataclasses.field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        """Whether all lists are empty."""
        return not (self.lost or self.samples or self.left or self.odd)

    def __str__(self) -> str:
        injected = ", ".join(f"{name} {self.faults[name]}" for name in FAULTS if self.faults[name]) or "none"
        return "\n".join(
            (
                f"{self.trainings} trainings in {self.sessions} sessions, {self.attempts} attempts",
                f"faults: {injected} ({self.faults.total()} in all)",
                f"steps lost beyond the newest whole checkpoint: {len(self.lost)}",
                f"samples twice, skipped or of another loss: {len(self.samples)}",
                f"left behind: {len(self.left)}",
                f"odd ends: {len(self.odd)}",
                *(self.lost + self.samples + self.left + self.odd),
            )
        )


class TrainingSoak:
    """A running soak; `tally` has its findings."""

    def __init__(self, folder: Path, rng: random.Random, names: Sequence[str]) -> None:
        """Starts the server of MLflow's requests, which never answers as it should."""
        self.tally = TrainingTally()
        self._folder, self._rng = folder, rng
        self._may_mount = os.geteuid() == 0
        if not self._may_mount:
            print("without full disks and read-only folders: only root mounts them")
        self._deck = Deck([name for name in names if self._may_mount or not FAULTS[name].needs_root], rng)
        self._server = Unwell(rng)
        self._expected: list[float] = []

    def run(self, seconds: float) -> None:
        """Runs an undisturbed training, then one after another for so many seconds."""
        self._training("undisturbed", 0.0)
        if not self._expected:
            self.tally.odd.append("the undisturbed training has no losses")
            return
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._training(f"t{self.tally.trainings}", until_s)

    def _training(self, name: str, until_s: float) -> None:
        place = self._folder / name
        (place / "tmp").mkdir(parents=True)
        folder = place / "disk" / "training"
        num_faults = num_alone = 0
        numbers = {2}
        with small_disk(place / "disk", _DISK_MIB) if self._may_mount else contextlib.nullcontext():
            folder.parent.mkdir(exist_ok=True)
            while num_alone < _ALONE:
                number, budget = self._number(num_faults), _FAULTS_A_TRAINING - num_faults
                faults, code = self._session(place, folder, number, budget, until_s)
                numbers.add(number)
                num_faults += len(faults)
                num_alone = 0 if faults else num_alone + 1
                if code == 0:
                    break
            else:
                self.tally.odd.append(f"{name} came to no end in {_ALONE} sessions without a fault")
            self._judge(name, folder, is_equal=numbers == {2})
        self.tally.left += [f"{name}: {path}" for path in (place / "tmp").glob("ray/session_*/")]
        if self.tally.is_clean:
            shutil.rmtree(place)

    def _number(self, num_faults: int) -> int:
        """Returns the number of workers of the next session: sometimes another one, once there were faults."""
        return self._rng.choice((1, 4)) if num_faults and self._rng.random() < 0.15 else 2

    def _session(
        self, place: Path, folder: Path, number: int, budget: int, until_s: float
    ) -> tuple[list[str], int | None]:
        """Runs a session with up to `budget` faults; returns them, and the exit code: None where it left processes."""
        log = place / f"session-{self.tally.sessions}"
        layout = write_layout(place / f"layout-{number}.json", _WORKERS[number], recipe=RECIPE)
        argv = [str(layout), "--tokens", str(_STEPS * STEP), "--out", str(folder), "--studies", str(place)]
        argv += ["--address", "local", "--checkpoint-steps", str(_CHECKPOINT_STEPS)]
        environment = {"TMPDIR": str(place / "tmp"), "MLFLOW_TRACKING_URI": self._server.uri, "OMP_NUM_THREADS": "1"}
        newest, began_s = _newest_step(folder), time.monotonic()
        num_begun = len(_begun(folder))
        self.tally.sessions += 1
        faults: list[str] = []
        code: int | None = None
        with Session(log, place / "none", *argv, environment=environment, module="platform.train") as session:
            scene = TrainingScene(session, folder, self._rng)
            while len(faults) < budget and scene.runs and time.monotonic() < until_s:
                attempts = len(_begun(folder))
                scene.wait_until(lambda attempts=attempts: len(_begun(folder)) > attempts or attempts > num_begun, 120)
                scene.let_pass(self._rng.uniform(0, 4))
                fault = self._deck.draw()
                if scene.runs and FAULTS[fault].inject(scene):
                    faults.append(fault)
            try:
                code = session.end().code
            except AssertionError as error:
                self.tally.left.append(f"{log}: {error}")
            scene.mend()
            text = session.text("err")
        self.tally.faults.update(faults)
        words = f"{place.name}, {number} workers ({', '.join(faults) or 'no fault'})"
        print(f"{words}: exit code {code} after {time.monotonic() - began_s:.0f} s", flush=True)
        allowed = {0, 3, 130, *(FAULTS[fault].code for fault in faults)}
        if code is not None and code not in allowed:
            self.tally.odd.append(f"{words}: exit code {code}: {' | '.join(text.splitlines()[-3:])}")
        if "Traceback" in text:
            self.tally.odd.append(f"{words}: a traceback: {text}")
        begun = _begun(folder)[num_begun:]
        self.tally.attempts += len(begun)
        if begun and begun[0].step < newest:
            self.tally.lost.append(f"{words}: began at step {begun[0].step}, the checkpoint of step {newest} was whole")
        scene.after_end()
        return faults, code

    def _judge(self, name: str, folder: Path, *, is_equal: bool) -> None:
        """Compares a finished training with the undisturbed one."""
        self.tally.trainings += 1
        records = steps_of(TrainingFolder(folder).read_records())
        steps = [step for record in records for step in range(record.first_step, record.last_step + 1)]
        if steps != [*range(1, _STEPS + 1)]:
            self.tally.samples.append(f"{name}: {len(steps)} steps are recorded, {len(set(steps))} unlike, of {_STEPS}")
        losses = [loss for record in records for loss in record.losses]
        if not self._expected:
            self._expected = losses
        pairs = zip(losses, self._expected, strict=False)
        largest = max((abs(loss / expected - 1) for loss, expected in pairs), default=0.0)
        if largest > (0.0 if is_equal else _TOLERANCE):
            self.tally.samples.append(f"{name}: a loss differs by {largest:.2g} of itself from the undisturbed one")
        print(
            f"{name}: {len(steps)} steps, final loss {losses[-1] if losses else None}, off by {largest:.2g}", flush=True
        )


def _newest_step(folder: Path) -> int:
    """Returns the step of the newest whole checkpoint; 0 for none."""
    with contextlib.suppress(ValueError):
        newest, _ = checkpoints.newest_whole(folder / CHECKPOINTS, checkpoints.damage)
        return 0 if newest is None else checkpoints.step_of(newest)
    return 0


def _begun(folder: Path) -> list[Begun]:
    with contextlib.suppress(ValueError):
        return [record for record in Reader(folder / "training.jsonl").read() if isinstance(record, Begun)]
    return []


def main(argv: Sequence[str] | None = None) -> int:
    """Soaks for the given time, prints the tally; the exit code is 1 unless all of it is zero."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further fault is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", default=",".join(FAULTS), help="of these alone, by their names, with commas")
    options = parser.parse_args(argv)
    names = options.faults.split(",")
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"--faults knows {', '.join(FAULTS)}; got {unknown[0]!r}")
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))  # the path of Ray's sockets is short
    began_s = time.monotonic()
    soak = TrainingSoak(folder, random.Random(options.seed), names)
    try:
        soak.run(60 * options.minutes)
    finally:
        minutes = (time.monotonic() - began_s) / 60
        print(f"{minutes:.1f} minutes, seed {options.seed}, {os.cpu_count()} cores\n{soak.tally}")
    if soak.tally.is_clean:
        shutil.rmtree(folder)
    else:
        print(f"logs and trainings are kept in {folder}")
    return 0 if soak.tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
