"""The manifest of a checkpoint: what is read is checked, whoever wrote it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint_damage import rewrite
from trainers.records import checkpoints
from trainers.records.checkpoint_manifest import FORMAT, Contents, Manifest, StoredChunk, StoredFile, StoredTensor
from trainers.records.training import LearningRateSchedule
from trainers.records.training_files import MANIFEST

FILE = StoredFile(name="rank-00000.safetensors", size_bytes=8, crc32="00000000")


def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> StoredChunk:
    return StoredChunk(file=FILE.name, key=str(offsets), offsets=offsets, sizes=sizes)


def tensor(shape: tuple[int, ...], *boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> StoredTensor:
    return StoredTensor(dtype="F32", shape=shape, chunks=tuple(chunk(*box) for box in boxes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a checkpoint's folder with a manifest."""
    path = tmp_path / "step-00000001-1"
    path.mkdir()
    (path / FILE.name).write_bytes(bytes(8))
    contents = Contents(files=(FILE,), tensors={"weight/a": tensor((2, 3), ((0, 0), (1, 3)), ((1, 0), (1, 3)))})
    manifest = Manifest(
        format=FORMAT, recipe_id="", step=1, tokens=2, samples=3, epoch=0, sample=3, optimizer_step=1,
        loss_scale=None, loss_scale_steps=0, learning_rate=0.1,
        lr_schedule=LearningRateSchedule(kind="constant", tokens=10), train_s=1.0, layout="DDP", attempt=1,
        contents=contents,
    )  # fmt: skip
    checkpoints.write_manifest(path, manifest)
    assert checkpoints.read_manifest(path) == manifest
    return path


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((), [((), ())]),
        ((4,), [((0,), (1,)), ((1,), (3,))]),
        ((2, 3), [((0, 1), (1, 2)), ((1, 0), (1, 3)), ((0, 0), (1, 1))]),
        ((3, 3), [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]),
    ],
)
def test_boxes_that_tile_a_tensor_are_taken(shape: tuple[int, ...], boxes: list[Any]):
    assert len(tensor(shape, *boxes).chunks) == len(boxes)


@pytest.mark.parametrize(
    ("shape", "boxes", "message"),
    [
        ((4,), [], "leave a gap or overlap"),
        ((), [], "leave a gap or overlap"),
        ((4,), [((0,), (3,))], "leave a gap or overlap"),
        ((4,), [((0,), (3,)), ((2,), (2,))], "leave a gap or overlap"),
        ((4,), [((0,), (2,)), ((0,), (2,))], "leave a gap or overlap"),
        ((2, 2), [((0, 0), (1, 1)), ((1, 1), (1, 1)), ((0, 1), (1, 1)), ((0, 1), (1, 1))], "leave a gap or overlap"),
        ((4,), [((-1,), (5,))], "lies outside"),
        ((4,), [((0,), (5,))], "lies outside"),
        ((4,), [((0,), (0,)), ((0,), (4,))], "lies outside"),
        ((4,), [((0, 0), (4, 1))], "other dimensions"),
        ((0,), [], "the shape"),
        ((1,) * 60, [], "the shape"),
    ],
)
def test_boxes_that_do_not_are_refused(shape: tuple[int, ...], boxes: list[Any], message: str):
    with pytest.raises(ValueError, match=message):
        tensor(shape, *boxes)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", ".metadata", "x.pt", "x\n"]
)
def test_a_name_that_leads_elsewhere_is_refused(name: str):
    with pytest.raises(ValueError, match="is none of a checkpoint"):
        dataclasses.replace(FILE, name=name)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("files", 0, "size_bytes"), -1),
        (("files", 0, "size_bytes"), 8.0),
        (("files", 0, "crc32"), 0),
        (("files", 0, "name"), "../../other.safetensors"),
        (("tensors", "weight/a", "dtype"), "pickle"),
        (("tensors", "weight/a", "shape"), "23"),
        (("tensors", "weight/a", "chunks", 0, "offsets", 0), 2**70),
        (("tensors", "weight/a", "chunks", 0, "sizes", 0), True),
        (("tensors", "weight/a", "chunks", 0, "file"), "rank-00001.safetensors"),
        (("tensors", "weight/a"), "a pickle, in base64"),
        (("tensors",), []),
    ],
)
def test_every_field_is_checked_when_it_is_read(folder: Path, path: tuple[Any, ...], value: object):
    """Checks a manifest whose checksum is right, as somebody makes it who wants it to be read."""

    def change(fields: Any) -> None:
        place = fields["contents"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    rewrite(folder / MANIFEST, change)
    with pytest.raises(ValueError, match="cannot be used") as refused:
        checkpoints.read_manifest(folder)
    assert str(folder / MANIFEST) in str(refused.value) and "\n" not in str(refused.value)


def test_the_order_is_of_numbers_and_a_link_or_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path):
    for name in ("step-00000002-9", "step-00000002-10", "step-100000000-1", "step-99999999-1", "step-1-1", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).touch()
    (tmp_path / "step-00000003-1").mkdir()
    (tmp_path / "step-00000004-1").symlink_to(tmp_path / "other")
    assert [path.name for path in checkpoints.candidates(tmp_path)] == [
        "step-100000000-1", "step-99999999-1", "step-00000002-10", "step-00000002-9",
    ]  # fmt: skip


def test_a_damaged_newer_checkpoint_does_not_push_out_the_one_just_written(folder: Path):
    """Checks it where the damaged one could not be set aside."""
    manifest = checkpoints.read_manifest(folder)
    for name in ("step-00000002-2", "step-00000003-1"):
        (folder.parent / name).mkdir()
        checkpoints.write_manifest(folder.parent / name, manifest)
    checkpoints.remove_old(folder.parent, 1, folder.parent / "step-00000002-2")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["step-00000002-2", "step-00000003-1"]
