"""Soaks trainings, and compares each with one that nothing disturbed.

A training of a small model meets up to six faults at random moments; what ended is begun again by the same command,
until it is trained. Then its losses are those of the undisturbed training, bit for bit, or within 5e-5 where its number
of workers was another one for a while.
"""

import contextlib
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soak.faults import Deck
from benchmarks.soak.tally import Tally
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
_TOLERANCE = 5e-5
"""Relative difference of a loss in fp32 where sums were taken over other numbers of workers: undisturbed trainings on 1
and 4 workers are up to 1.5e-5 away from one on 2 (docs/lab/faults.csv#soak-rounding.2).
"""


class TrainingSoak:
    """A running soak; `tally` has its findings."""

    def __init__(self, folder: Path, rng: random.Random, names: Sequence[str]) -> None:
        """Starts the server of MLflow's requests, which never answers as it should."""
        self.tally = Tally(
            lost_title="steps lost beyond the newest whole checkpoint",
            again_title="samples twice, skipped or of another loss",
        )
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
            self._training(f"t{self.tally.counts['trainings']}", until_s)

    def end(self) -> None:
        """Stops the server."""
        self._server.end()

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
        log = place / f"session-{self.tally.counts['sessions']}"
        layout = write_layout(place / f"layout-{number}.json", _WORKERS[number], recipe=RECIPE)
        argv = [str(layout), "--tokens", str(_STEPS * STEP), "--out", str(folder), "--studies", str(place)]
        argv += ["--address", "local", "--checkpoint-steps", str(_CHECKPOINT_STEPS)]
        environment = {"TMPDIR": str(place / "tmp"), "MLFLOW_TRACKING_URI": self._server.uri, "OMP_NUM_THREADS": "1"}
        newest, began_s = _newest_step(folder), time.monotonic()
        num_begun = len(_begun(folder))
        self.tally.counts["sessions"] += 1
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
        self.tally.judge(words, code, allowed, text)
        begun = _begun(folder)[num_begun:]
        self.tally.counts["attempts"] += len(begun)
        if begun and begun[0].step < newest:
            self.tally.lost.append(f"{words}: began at step {begun[0].step}, the checkpoint of step {newest} was whole")
        scene.after_end()
        return faults, code

    def _judge(self, name: str, folder: Path, *, is_equal: bool) -> None:
        """Compares a finished training with the undisturbed one."""
        self.tally.counts["trainings"] += 1
        records = steps_of(TrainingFolder(folder).read_records())
        steps = [step for record in records for step in range(record.first_step, record.last_step + 1)]
        if steps != [*range(1, _STEPS + 1)]:
            self.tally.again.append(f"{name}: {len(steps)} steps are recorded, {len(set(steps))} unlike, of {_STEPS}")
        losses = [loss for record in records for loss in record.losses]
        if not self._expected:
            self._expected = losses
        pairs = zip(losses, self._expected, strict=False)
        largest = max((abs(loss / expected - 1) for loss, expected in pairs), default=0.0)
        if largest > (0.0 if is_equal else _TOLERANCE):
            self.tally.again.append(f"{name}: a loss differs by {largest:.2g} of itself from the undisturbed one")
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
