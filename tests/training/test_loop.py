"""The loop of a training on two ranks: its records, and that a training which was cut goes on as if it had not been."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest

from tests.contract.group import run_group
from tests.disks import small_disk
from tests.training.loop_group import ALLOWED, Attempt, attempts, job
from tests.training.values import DDP, FSDP, RECIPE, STEP, plan
from trainers.records import checkpoints
from trainers.records.training import Begun, NotSaved, Record, Saved, Steps, TrainingPhase, Validated
from trainers.records.training_files import CHECKPOINTS, RECORDS
from trainers.records.training_lines import Reader, without_redone
from trainers.spec.batch import BatchPoint
from trainers.training.loop import diverged

pytestmark = pytest.mark.contract

RAMP = plan(
    phases=(
        TrainingPhase(end_tokens=4 * STEP, layout=DDP, batch=BatchPoint(micro_batch=1, grad_accum=1)),
        TrainingPhase(end_tokens=8 * STEP, layout=DDP, batch=BatchPoint(micro_batch=1, grad_accum=2)),
        TrainingPhase(end_tokens=12 * STEP, layout=FSDP, batch=BatchPoint(micro_batch=2, grad_accum=1)),
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, str]:
    """Returns why each attempt ended; all are played in one group of two ranks."""
    planned_attempts = {
        "undisturbed": Attempt(job=job(folder / "undisturbed", plan())),
        "cut": Attempt(job=job(folder / "cut", plan()), dies_before=7),
        "cut, on": Attempt(job=job(folder / "cut", plan(), attempt=2)),
        "moved": Attempt(job=job(folder / "moved", plan()), dies_before=10),
        "moved, on": Attempt(job=job(folder / "moved", plan(FSDP), attempt=2)),
        "ramp": Attempt(job=job(folder / "ramp", RAMP)),
        "ramp, on": Attempt(job=job(folder / "ramp", RAMP, attempt=2, layout=FSDP)),
    }
    return dict(zip(planned_attempts, run_group(attempts, list(planned_attempts.values()), 2), strict=True))


def records(folder: Path) -> list[Record]:
    return without_redone(Reader(folder / RECORDS).read())


def losses(folder: Path) -> list[float]:
    return [loss for record in records(folder) if isinstance(record, Steps) for loss in record.losses]


def held_out(folder: Path) -> list[tuple[int, float]]:
    return [(record.step, record.loss) for record in records(folder) if isinstance(record, Validated)]


def test_steps_held_out_losses_and_checkpoints_are_recorded(folder: Path, outcomes: dict[str, str]):
    assert outcomes["undisturbed"] == "done"
    all_records = records(folder / "undisturbed")
    steps = [all_record for all_record in all_records if isinstance(all_record, Steps)]
    assert [step for record in steps for step in range(record.first_step, record.last_step + 1)] == list(range(1, 13))
    assert steps[-1].tokens == 12 * STEP
    assert all(0 < earlier.train_s < later.train_s for earlier, later in itertools.pairwise(steps))
    assert [step for step, _ in held_out(folder / "undisturbed")] == [0, 5, 10, 12]
    assert [all_record.step for all_record in all_records if isinstance(all_record, Saved)] == [4, 8, 12]
    assert sorted(path.name for path in (folder / "undisturbed" / CHECKPOINTS).iterdir()) == [
        "step-00000008-1",
        "step-00000012-1",
    ]


def test_the_learning_rate_follows_the_schedule(folder: Path, outcomes: dict[str, str]):
    rates = [
        rate
        for record in records(folder / "undisturbed")
        if isinstance(record, Steps)
        for rate in record.learning_rates
    ]
    schedule = plan().lr_schedule
    assert rates == [RECIPE.learning_rate * schedule.share_at(step * STEP) for step in range(1, 13)]
    assert rates[0] < rates[1] < rates[2] == max(rates) and rates[-1] == pytest.approx(1e-3)


def test_the_loss_falls(folder: Path, outcomes: dict[str, str]):
    curve = held_out(folder / "undisturbed")
    assert curve[-1][1] < curve[0][1] < 5.6


def test_a_cut_training_goes_on_bit_for_bit(folder: Path, outcomes: dict[str, str]):
    assert (outcomes["cut"], outcomes["cut, on"]) == ("gone", "done")
    assert [record.step for record in records(folder / "cut") if isinstance(record, Begun)] == [0, 4]
    assert losses(folder / "cut") == losses(folder / "undisturbed")
    assert held_out(folder / "cut") == held_out(folder / "undisturbed")


def test_a_training_goes_on_with_another_engine(folder: Path, outcomes: dict[str, str]):
    assert outcomes["moved, on"] == "done"
    assert losses(folder / "moved") == pytest.approx(losses(folder / "undisturbed"), rel=1e-6)
    assert held_out(folder / "moved")[-1][1] == pytest.approx(held_out(folder / "undisturbed")[-1][1], rel=1e-6)


def test_a_ramp_grows_the_batch_and_a_checkpoint_crosses_to_another_layout(folder: Path, outcomes: dict[str, str]):
    assert (outcomes["ramp"], outcomes["ramp, on"]) == ("done", "done")
    steps = [record for record in records(folder / "ramp") if isinstance(record, Steps)]
    sizes = [step.tokens_per_step for step in steps for _ in step.losses]
    assert sizes == [STEP // 2] * 8 + [STEP] * 8
    newest = checkpoints.newest(folder / "ramp" / CHECKPOINTS)
    assert newest is not None
    manifest = checkpoints.read_manifest(newest)
    assert (manifest.samples, manifest.tokens, manifest.optimizer_step) == (8 * 2 + 8 * 4, 12 * STEP, 16)


def test_the_same_samples_are_seen_whatever_the_ramp(folder: Path, outcomes: dict[str, str]):
    """Checks that the place in the data counts sequences, not steps: the ramp ends at the same place as the plain
    training.
    """
    places = [
        checkpoints.read_manifest(path)
        for name in ("undisturbed", "ramp")
        if (path := checkpoints.newest(folder / name / CHECKPOINTS)) is not None
    ]
    assert {(place.epoch, place.sample) for place in places} == {(0, 48)}


@pytest.mark.parametrize(("training", "steps"), [("undisturbed", {"step 1"}), ("ramp", {"step 1", "step 9"})])
def test_what_is_compiled_anew_has_its_time(folder: Path, outcomes: dict[str, str], training: str, steps: set[str]):
    """Checks that the watchdog allows time to compile for held-out losses, for the first step, although a held-out loss
    comes before it, and for the first step of a phase with another batch.
    """
    allowances = json.loads((folder / training / f"{ALLOWED}-1.json").read_text())
    generous = {where for where, allowed_s in allowances if allowed_s is not None}
    assert {where for where in generous if where.startswith("step ")} == steps
    assert {where for where, _ in allowances if where.startswith("held-out")} <= generous
    assert {"step 2", "step 8"} <= {where for where, _ in allowances}


def test_a_loss_or_a_norm_that_is_no_number_ends_a_training_before_a_checkpoint_holds_it():
    assert diverged(5, [1.0, 2.0], [1.0, 2.0], skips=False) == ""
    assert diverged(5, [1.0, math.nan], [1.0, 2.0], skips=True) == "the loss of step 6 is nan"
    assert diverged(5, [1.0, 2.0], [math.inf, 2.0], skips=False) == "the gradient norm of step 5 is inf"
    assert diverged(5, [1.0, 2.0], [math.inf, 2.0], skips=True) == ""


def test_the_records_of_a_superseded_attempt_are_left_out(folder: Path, outcomes: dict[str, str]):
    all_records = Reader(folder / "cut" / RECORDS).read()
    redone = [
        all_record
        for all_record in all_records
        if isinstance(all_record, Steps) and all_record.attempt == 1 and all_record.first_step > 4
    ]
    assert redone and not any(record in records(folder / "cut") for record in redone)
    assert dataclasses.is_dataclass(redone[0])


def test_a_full_disk_leaves_the_last_checkpoint_and_loses_no_record(
    folder: Path, outcomes: dict[str, str], tmp_path: Path
):
    with small_disk(tmp_path / "disk", 2) as disk:
        attempt = Attempt(job=job(disk, plan()), full_before=6, free_before=10)
        assert run_group(attempts, [attempt], 2) == ["done"]
        (missing,) = (record for record in records(disk) if isinstance(record, NotSaved))
        assert missing.step == 8
        assert re.fullmatch(rf"a checkpoint needs 0 MiB, 0 MiB are free in {disk / CHECKPOINTS}", missing.reason)
        assert [record.step for record in records(disk) if isinstance(record, Saved)] == [4, 12]
        assert sorted(path.name for path in (disk / CHECKPOINTS).iterdir()) == ["step-00000004-1", "step-00000012-1"]
        assert losses(disk) == losses(folder / "undisturbed")
