"""Typical damage to a checkpoint by disks, copies and people, and a pickle that would run a command."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

from trainers.records.journal_lines import checked, sealed
from trainers.records.training_files import MANIFEST

SHARD = "rank-00000.safetensors"


class _Planted:
    """Creates the file `path` when unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mknod, (str(self._path),)


def plant_pickle(checkpoint: Path, target: Path) -> None:
    """Plants pickles that would create the file `target`: under the names of torch's checkpoints, and in the shards."""
    planted = pickle.dumps(_Planted(target))
    for name in (".metadata", "__0_0.distcp", SHARD):
        (checkpoint / name).write_bytes(planted)


def flip(path: Path, place: int = -1) -> None:
    """Flips a bit of a byte, by default of the file's last one."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    """Truncates the file to half of its size."""
    os.truncate(path, path.stat().st_size // 2)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _link(path: Path) -> None:
    away = path.with_name("away")
    shutil.copyfile(path, away)
    path.unlink()
    path.symlink_to(away)


def rewrite(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Changes the manifest's members and updates its checksum, like a deliberate forgery."""
    fields = checked(path.read_bytes())
    change(fields)
    path.write_text(sealed(json.dumps(fields)))


OF_SHARDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped in the values": (flip, "was changed after it was written"),
    "flipped in the header": (lambda path: flip(path, 20), "was changed after it was written"),
    "cut to half": (halve, r"has [\d,]+ bytes, [\d,]+ were written"),
    "removed": (Path.unlink, "is missing"),
    "a folder": (lambda path: _replace(path, Path.mkdir), "is a folder where a regular file is expected"),
    "a pipe": (lambda path: _replace(path, os.mkfifo), "is a pipe where a regular file is expected"),
    "a link": (_link, "is a link where a regular file is expected"),
}
"""Kinds of damage to a rank's file, each with a pattern of its error message."""

OF_MANIFESTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_text(""), "not a whole JSON object"),
    "null": (lambda path: path.write_text("null"), "not a JSON object"),
    "a list": (lambda path: path.write_text("[1]"), "not a JSON object"),
    "nested": (lambda path: path.write_text("[" * 10**5), "not a whole JSON object"),
    "no UTF-8": (lambda path: path.write_bytes(b"\xff\xfe{"), "not a whole JSON object"),
    "another value": (
        lambda path: path.write_text(path.read_text().replace('"tokens":', '"tokens":1', 1)),
        "its checksum does not match",
    ),
    "flipped": (lambda path: flip(path, 40), "its checksum does not match|not a whole JSON object"),
    "cut to half": (halve, "not a whole JSON object"),
    "without tokens": (lambda path: rewrite(path, lambda fields: fields.pop("tokens")), "lacks tokens"),
    "a folder": (lambda path: _replace(path, Path.mkdir), "is a folder where a regular file is expected"),
    "a pipe": (lambda path: _replace(path, os.mkfifo), "is a pipe where a regular file is expected"),
    "a link": (_link, "is a link where a regular file is expected"),
}
"""Kinds of damage to the manifest, each with a pattern of its error message."""


def damaged(checkpoint: Path, kind: str) -> str:
    """Damages the checkpoint in one way, "shard: KIND" or "manifest: KIND"; returns the pattern of its error
    message.
    """
    where, _, how = kind.partition(": ")
    damage, sentence = OF_SHARDS[how] if where == "shard" else OF_MANIFESTS[how]
    damage(checkpoint / (SHARD if where == "shard" else MANIFEST))
    return sentence


KINDS = [*(f"shard: {kind}" for kind in OF_SHARDS), *(f"manifest: {kind}" for kind in OF_MANIFESTS)]
