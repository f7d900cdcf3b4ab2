"""Damaged checkpoints: the next older whole one is used, and nothing that stands in a checkpoint is ever run."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import platform.train.__main__ as train
from platform.train.exporting import command
from platform.train.training_folder import TrainingFolder
from tests.contract.group import run_group
from tests.training.checkpoint_damage import KINDS, SHARD, damaged, flip, halve, plant_pickle, rewrite
from tests.training.environment import ENVIRONMENT
from tests.training.layout_file import write_layout
from tests.training.loop_group import Attempt, attempts, job
from tests.training.values import STEP, plan
from trainers.records import checkpoints
from trainers.records.checkpoints import Damage
from trainers.records.training import Begun, SetAside
from trainers.records.training_files import ATTEMPT, CHECKPOINTS, LOCK, MANIFEST, PLAN, RECORDS, STOP
from trainers.records.training_lines import Reader
from trainers.spec.layout import Layout
from trainers.training import checkpoint_reading, torchrun

pytestmark = pytest.mark.contract

ALONE = plan(Layout(engine="ddp"), steps=8)
OLDER, NEWER = "step-00000004-1", "step-00000008-1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a training of two ranks with checkpoints after its fourth and its last step."""
    folder = tmp_path_factory.mktemp("trainings") / "trained"
    assert run_group(attempts, [Attempt(job=job(folder, plan(steps=8)))], 2) == ["done"]
    TrainingFolder(folder).write_plan(plan(steps=8))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """Returns a copy of the training, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "training"))


def _train(folder: Path) -> int:
    layout = write_layout(folder.parent / "layout.json")
    return train.main([str(layout), "--tokens", str(8 * STEP), "--out", str(folder), "--studies", str(folder)])


def _export(folder: Path, out: Path) -> int:
    return command.main([str(folder), "--out", str(out)])


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_takes_the_checkpoint_before_a_damaged_one_and_says_so(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    sentence = damaged(folder / CHECKPOINTS / NEWER, kind)
    assert _export(folder, folder / "model") == 0
    output = capsys.readouterr().err
    (line,) = (line for line in output.splitlines() if line.startswith(f"The checkpoint {NEWER} is not used: "))
    assert f"{folder / CHECKPOINTS / NEWER}/" in line and re.search(sentence, line)
    assert f"holds the model of {OLDER}" in output
    assert (folder / CHECKPOINTS / NEWER).exists() and (folder / "model" / "model.safetensors").exists()


def test_without_a_whole_checkpoint_an_export_ends_with_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]):
    flip(folder / CHECKPOINTS / OLDER / SHARD)
    halve(folder / CHECKPOINTS / NEWER / SHARD)
    assert _export(folder, folder / "model") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"error: no checkpoint in {folder / CHECKPOINTS} can be used (")
    halve(folder / CHECKPOINTS / OLDER / SHARD)
    assert _train(folder) == 2
    assert capsys.readouterr().err.startswith(f"error: no checkpoint in {folder / CHECKPOINTS} can be used (")
    assert f"{OLDER}/{SHARD} was changed" in line and f"{NEWER}/{SHARD} has " in line
    assert not (folder / "model").exists()


def test_an_export_does_not_look_at_a_pickle_beside_its_files(folder: Path, capsys: pytest.CaptureFixture[str]):
    plant_pickle(folder / CHECKPOINTS / OLDER, folder / "target")
    for name in (".metadata", "__0_0.distcp"):
        shutil.move(folder / CHECKPOINTS / OLDER / name, folder / CHECKPOINTS / NEWER / name)
    assert _export(folder, folder / "model") == 0
    assert f"holds the model of {NEWER}" in capsys.readouterr().err and not (folder / "target").exists()


@pytest.mark.parametrize("number", [1, 3])
def test_a_checkpoint_of_another_version_is_refused(number: int, folder: Path, capsys: pytest.CaptureFixture[str]):
    """Checks that no older one takes its place, so that it is not removed as superseded."""
    manifest = folder / CHECKPOINTS / NEWER / MANIFEST
    if number == 1:
        manifest.write_text('{"format": 1}')  # without a checksum
    else:
        rewrite(manifest, lambda fields: fields.update(format=3))
    for run in (functools.partial(_export, folder, folder / "model"), functools.partial(_train, folder)):
        assert run() == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith(f"error: {manifest} has format {number}, this version reads 2: train with")


@pytest.mark.parametrize("both", [True, False])
def test_an_export_runs_no_pickle(folder: Path, both: bool, capsys: pytest.CaptureFixture[str]):
    target = folder / "target"
    for name in (OLDER, NEWER) if both else (NEWER,):
        plant_pickle(folder / CHECKPOINTS / name, target)
    assert _export(folder, folder / "model") == (2 if both else 0)
    assert f"{NEWER}/{SHARD} has " in capsys.readouterr().err
    assert not target.exists()


def _resumed(folder: Path) -> tuple[list[str], list[SetAside], list[int]]:
    """Returns how the next attempt ended, which checkpoints it set aside, and from which steps attempts began."""
    ended = run_group(attempts, [Attempt(job=job(folder, plan(steps=12), attempt=2))], 2)
    records = Reader(folder / RECORDS).read()
    set_aside = [record for record in records if isinstance(record, SetAside)]
    return ended, set_aside, [record.step for record in records if isinstance(record, Begun)]


@pytest.mark.parametrize("kind", ["shard: flipped in the values", "shard: removed", "manifest: empty"])
def test_a_training_goes_on_from_the_checkpoint_before_a_damaged_one(kind: str, folder: Path):
    """Checks that both ranks do, although each looks at its own part of the files."""
    sentence = damaged(folder / CHECKPOINTS / NEWER, kind)
    ended, (set_aside,), begun = _resumed(folder)
    assert (ended, begun) == (["done"], [0, 4])
    assert set_aside.name == NEWER and re.search(sentence, set_aside.reason)
    assert checkpoints.newest(folder / CHECKPOINTS) == folder / CHECKPOINTS / "step-00000012-2"


def test_a_checkpoint_of_another_place_in_the_data_is_not_gone_on_from(folder: Path):
    rewrite(folder / CHECKPOINTS / NEWER / MANIFEST, lambda fields: fields.update(sample=33))
    with pytest.raises(Exception, match=r"stands at sequence 33 of epoch 0, which is 32 of epoch 0 in the data as"):
        _resumed(folder)


def _agreed(checkpoints_folder: Path) -> str:
    """Returns what two ranks agree on where the second does not see the newest checkpoint's manifest yet."""
    reading: Any = checkpoint_reading
    before = reading.damage
    if dist.get_rank() == 1:
        reading.damage = lambda path, **_: Damage(path=path, reason=f"{path} is missing")  # type: ignore[reportUnknownLambdaType]
    gathered: list[Any] = [None, None]

    def gather(value: Any) -> list[Any]:
        dist.all_gather_object(gathered, value)
        return list(gathered)

    try:
        return str(checkpoint_reading.agree_on_newest(checkpoints_folder, gather))
    except ValueError as error:
        return str(error)
    finally:
        reading.damage = before


def test_a_checkpoint_that_only_one_node_misses_is_not_given_up(folder: Path):
    answer = run_group(_agreed, folder / CHECKPOINTS, 2)
    assert answer.startswith("rank 1 finds that ") and NEWER in answer
    assert checkpoints.newest(folder / CHECKPOINTS) == folder / CHECKPOINTS / NEWER


def test_a_resumed_training_runs_no_pickle(folder: Path):
    target = folder / "target"
    plant_pickle(folder / CHECKPOINTS / NEWER, target)
    assert _resumed(folder)[0] == ["done"] and not target.exists()


def _torchrun(folder: Path) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, "-m", "trainers.training.torchrun", str(folder)]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return subprocess.run(
        command_line, env=ENVIRONMENT | alone, capture_output=True, text=True, timeout=300, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_without_a_whole_checkpoint_a_training_ends_with_one_sentence_and_runs_no_pickle(folder: Path):
    (folder / PLAN).unlink()
    TrainingFolder(folder).write_plan(ALONE)
    target = folder / "target"
    for name in (OLDER, NEWER):
        data = (folder / CHECKPOINTS / name / SHARD).read_bytes()
        plant_pickle(folder / CHECKPOINTS / name, target)
        planted = (folder / CHECKPOINTS / name / SHARD).read_bytes()
        (folder / CHECKPOINTS / name / SHARD).write_bytes(planted + data[len(planted) :])  # of the size that it had
    os.truncate(folder / CHECKPOINTS / NEWER / SHARD, 10)  # or the training would be complete
    completed = _torchrun(folder)
    assert completed.returncode == 1 and "Traceback" not in completed.stderr
    (line,) = (line for line in completed.stderr.splitlines() if "no checkpoint" in line)
    assert f"{OLDER}/{SHARD} was changed after it was written" in line and f"{NEWER}/{SHARD} has 10 bytes" in line
    assert not target.exists()


ODD_FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "plan empty": (PLAN, lambda path: path.write_text("")),
    "plan null": (PLAN, lambda path: path.write_text("null")),
    "plan nested": (PLAN, lambda path: path.write_text("[" * 10**5)),
    "plan a folder": (PLAN, Path.mkdir),
    "plan a pipe": (PLAN, os.mkfifo),
    "attempt junk": (ATTEMPT, lambda path: path.write_text("junk")),
    "attempt a pipe": (ATTEMPT, os.mkfifo),
    "records a folder": (RECORDS, Path.mkdir),
    "records a pipe": (RECORDS, os.mkfifo),
    "lock a folder": (LOCK, Path.mkdir),
    "stop a pipe": (STOP, os.mkfifo),
    "plan a link": (PLAN, lambda path: path.symlink_to(path.with_name("elsewhere"))),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_of_a_training_is_refused_in_one_sentence(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    name, make = ODD_FILES[kind]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    assert _train(folder) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and str(folder / name) in line
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize("kind", ["plan a pipe", "plan nested", "attempt junk", "records a pipe", "lock a folder"])
def test_torchrun_refuses_it_too(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    name, make = ODD_FILES[kind]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    monkeypatch.setenv("RANK", "0")
    assert torchrun.main([str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and str(folder / name) in line
