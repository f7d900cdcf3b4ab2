"""An interrupt promises a checkpoint only where the last one's time fits into what is left."""

import re
import time
from pathlib import Path

import pytest

from platform.train.interrupt import CheckpointWatch
from trainers.records.training import NotSaved, Record, Saved, Saving, Steps
from trainers.records.training_files import CHECKPOINTS

STEPS = Steps(
    attempt=1, first_step=1, losses=(1.0,) * 2, grad_norms=(1.0,) * 2, learning_rates=(0.1,) * 2, tokens=2,
    tokens_per_step=1, train_s=20.0, steps_s=20.0, data_s=0.0, peak_gib=1.0,
)  # fmt: skip
SAVED = Saved(attempt=1, step=10, name="step-00000010-1", stall_s=5.0, background_s=165.0, gib=98.0)
SAVING = Saving(attempt=1, step=20, name="step-00000020-1", gib=98.0)


def watch(folder: Path, *records: Record) -> CheckpointWatch:
    watching = CheckpointWatch(folder)
    watching.add([STEPS, *records])
    return watching


@pytest.mark.parametrize(
    ("records", "grace_s", "saves", "sentence"),
    [
        ([], None, True, r"saves its first checkpoint and ends; a second"),
        ([], 30.0, True, r"saves its first checkpoint and ends if that takes less than the 30 s of --grace; a second"),
        ([SAVING], None, True, r"saves its first checkpoint \(checkpoint of step 20: 0 MiB of 98.00 GiB written\)"),
        ([SAVING], 30.0, False, r"saves its first checkpoint \(.*\) and ends if that takes less than the 30 s of"),
        ([SAVED], None, True, r"saves a checkpoint \(of 98.00 GiB, about 3 min 0 s\) and ends; a second interrupt"),
        ([SAVED], 200.0, True, r"saves a checkpoint \(of 98.00 GiB, about 3 min 0 s\) and ends"),
        ([SAVED], 30.0, False, r"ends without a further checkpoint than that of step 10, for another takes about 2 min"
                               r" 50 s of the 30 s of --grace"),
        ([SAVED, SAVING], None, True, r"\(of 98.00 GiB, about 5 min 50 s\)"),
        ([SAVED, SAVING], 200.0, False, r"ends with the checkpoint of step 20 that is being written, for another"),
        ([SAVED, SAVING], 30.0, False, r"ends without a further checkpoint than that of step 10"),
        ([SAVED, SAVING, NotSaved(attempt=1, step=20, reason="full")], 200.0, True, r"saves a checkpoint"),
    ],
)  # fmt: skip
def test_what_an_interrupt_leads_to(
    records: list[Record], grace_s: float | None, saves: bool, sentence: str, tmp_path: Path
) -> None:
    answer = watch(tmp_path, *records).answer(grace_s)
    assert answer.saves == saves and re.search(sentence, answer.sentence), answer.sentence
    assert answer.sentence.startswith("Interrupted: the training ")


def test_the_progress_of_a_checkpoint_is_that_of_its_files(tmp_path: Path) -> None:
    watching = watch(tmp_path)
    assert watching.progress() == "" and watching.written() == 0
    watching.add([Saving(attempt=1, step=20, name="step-00000020-1", gib=2 / 1024)])
    folder = tmp_path / CHECKPOINTS / "step-00000020-1"
    folder.mkdir(parents=True)
    for rank, size in enumerate((2**19, 2**19)):
        (folder / f"rank-{rank:05d}.safetensors").write_bytes(bytes(size))
    assert watching.progress() == "checkpoint of step 20: 1 MiB of 2 MiB written"
    (folder / "rank-00000.safetensors").write_bytes(bytes(2**21))
    assert watching.progress() == "checkpoint of step 20: 2 MiB of 2 MiB written, read back"
    watching.add([SAVED])
    assert watching.progress() == ""


def test_a_checkpoint_that_is_half_written_takes_the_rest_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = watch(tmp_path, SAVED, SAVING)
    now_s = time.monotonic() + 160
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert "ends with the checkpoint of step 20" in watching.answer(30.0).sentence
    assert watching.answer(200.0).saves
