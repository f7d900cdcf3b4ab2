"""The checkpoints in a training's folder: which exist, whether they are complete and undamaged, and their manifests.

A checkpoint is a folder `step-NUMBER-ATTEMPT` with a file of each rank that wrote it and `manifest.json`, which is
written last; a folder without it is no checkpoint. Driver, workers and exports read checkpoints through this module.
Imports no torch.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from trainers.records.checkpoint_manifest import FORMAT, Manifest, StoredFile
from trainers.records.journal_lines import JournalError, checked, flush, sealed
from trainers.records.plain_files import open_plain, read_plain
from trainers.records.training_files import MANIFEST
from trainers.spec.codec import from_json, json_object, shortened, to_json
from trainers.spec.errors import MissingFileError

_NAME = re.compile(r"step-(\d{8,18})-(\d{1,18})")
_SET_ASIDE = f"damaged-{MANIFEST}"
_BLOCK_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    path: Path
    reason: str
    """A clause on the damage, with the file's path."""
    is_foreign: bool = False
    """Whether another version wrote it, so that it is undamaged and no older checkpoint may replace it."""


class FormatError(ValueError):
    """The manifest has another version's format."""


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest into the folder `path`, which makes the folder a checkpoint."""
    part = path / f".{MANIFEST}.part"
    with part.open("w") as file:
        file.write(sealed(json.dumps(to_json(manifest), separators=(",", ":"))))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path / MANIFEST)
    flush(path)
    flush(path.parent)


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of the checkpoint in folder `path`.

    Raises:
        FormatError: it has another format.
        ValueError: it is damaged or no regular file; the text names it.
    """
    file = path / MANIFEST
    try:
        data = read_plain(file)
    except MissingFileError as error:
        raise ValueError(f"{file} is missing") from error
    try:
        fields = checked(data)
    except JournalError as error:
        if (former := _format_of(data)) is not None:
            raise FormatError(f"{file} has format {former}, this version reads {FORMAT}") from error
        raise ValueError(f"{file} cannot be used: {error}") from error
    if fields.get("format") != FORMAT:
        raise FormatError(f"{file} has format {shortened(fields.get('format'))}, this version reads {FORMAT}")
    try:
        return from_json(Manifest, fields)
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error


def _format_of(data: bytes) -> int | None:
    """Returns the format stated by a manifest without a checksum, like manifests of the first format; None if it states
    none.
    """
    try:
        number = json_object(data)["format"]
    except (ValueError, KeyError):
        return None
    return number if type(number) is int and number != FORMAT else None


def candidates(folder: Path) -> list[Path]:
    """Returns the folders in `folder` that claim to be checkpoints, newest first: by step, then by attempt."""
    return sorted((path for path in _folders(folder) if os.path.lexists(path / MANIFEST)), key=_order, reverse=True)


def newest(folder: Path) -> Path | None:
    """Returns the newest checkpoint in `folder` that is undamaged according to its manifest and the sizes of its files;
    None if there is no checkpoint.

    Raises:
        ValueError: all checkpoints are damaged, or the newest belongs to another version.
    """
    return newest_whole(folder, functools.partial(damage, reads=False))[0]


def newest_whole(
    folder: Path, look: Callable[[Path], Damage | None], paths: Iterable[Path] | None = None
) -> tuple[Path | None, list[Damage]]:
    """Returns the first of the checkpoints `paths` (default: all in `folder`, newest first) for which `look` finds no
    damage, and the damaged ones before it; None if there is no checkpoint.

    Raises:
        ValueError: all checkpoints are damaged, or a newer one belongs to another version.
    """
    damages: list[Damage] = []
    for path in candidates(folder) if paths is None else paths:
        damaged = look(path)
        if damaged is None:
            return path, damages
        if damaged.is_foreign:
            raise ValueError(f"{damaged.reason}: train with that version, or into another folder")
        damages.append(damaged)
    if damages:
        reasons = "; ".join(damaged.reason for damaged in damages)
        remedy = "bring one back from a copy, or train into another folder"
        raise ValueError(f"no checkpoint in {folder} can be used ({reasons}): {remedy}")
    return None, []


def damage(path: Path, *, reads: bool = True, part: int = 0, num_parts: int = 1) -> Damage | None:
    """Returns the damage of the checkpoint in folder `path`; None if it has none. With `reads` every byte is compared
    with its checksum, otherwise only sizes are. Of `num_parts` readers, this one checks files `part`, `part` +
    `num_parts`, ...
    """
    try:
        files = read_manifest(path).contents.files
        for file in files[part::num_parts]:
            _check(path, file, reads=reads)
    except ValueError as error:
        return Damage(path=path, reason=str(error), is_foreign=isinstance(error, FormatError))
    return None


def _check(folder: Path, file: StoredFile, *, reads: bool) -> None:
    path = folder / file.name
    try:
        descriptor = open_plain(path)
    except MissingFileError as error:
        raise ValueError(f"{path} is missing") from error
    with os.fdopen(descriptor, "rb", buffering=0) as opened:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes != file.size_bytes:
            raise ValueError(f"{path} has {size_bytes:,} bytes, {file.size_bytes:,} were written")
        if not reads:
            return
        checksum, block = 0, memoryview(bytearray(_BLOCK_BYTES))
        try:
            while count := opened.readinto(block):
                checksum = zlib.crc32(block[:count], checksum)
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
    if f"{checksum:08x}" != file.crc32:
        raise ValueError(f"{path} was changed after it was written: its checksum is {checksum:08x}, not {file.crc32}")


def check_written(folder: Path, file: StoredFile) -> None:
    """Reads a newly written file back, from the disk if the system allows it.

    Raises:
        ValueError: its content differs from the written content.
    """
    descriptor = os.open(folder / file.name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # otherwise the page cache would answer for the disk
    finally:
        os.close(descriptor)
    _check(folder, file, reads=True)


def step_of(path: Path) -> int:
    return _order(path)[0]


def set_aside(path: Path) -> None:
    """Renames the manifest of the damaged checkpoint in folder `path`, so that driver and workers agree on the previous
    checkpoint; its files stay until a newer checkpoint is complete.
    """
    with contextlib.suppress(OSError):  # another user's or a full disk; it is then found damaged each time
        (path / MANIFEST).replace(path / _SET_ASIDE)
        flush(path)


def remove_old(folder: Path, keep: int, newest: Path) -> None:
    """Removes folders older than the checkpoint `newest`, except the newest `keep` complete checkpoints (itself
    included). Removes unfinished ones of other attempts too; ignores errors.

    `newest` must be newly verified, because a still newer checkpoint may be damaged without having been set aside.
    """
    last = _order(newest)
    with contextlib.suppress(OSError):
        complete = [path for path in candidates(folder) if _order(path) <= last]
        stay = {newest, *complete[:keep]}
        for path in _folders(folder):
            if path not in stay and _order(path) < last:
                with contextlib.suppress(OSError):  # the manifest first, so that a half-removed folder is no checkpoint
                    (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    """Returns the folders with a checkpoint's name, without links."""
    return [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and _is_folder(path)]


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])
