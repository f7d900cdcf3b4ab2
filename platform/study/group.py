"""The folder of a search on several numbers of devices, which lists the studies that belong together.

Each number of devices has an ordinary study beside this folder, such as `NAME-4gpu`. Their journals are authoritative.
The folder holds the shared options (`scaling.json`) and outputs made from the studies.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from trainers.records.plain_files import read_json
from trainers.spec.codec import from_json, to_json

SCALING = "scaling.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyGroup:
    """The content of `scaling.json`."""

    counts: tuple[int, ...]
    """Numbers of devices, ascending."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """The options shared by all studies, keyed as in `platform.search.setup.options.StudyOptions`."""


def member(name: str, count: int) -> str:
    return f"{name}-{count}gpu"


def is_group(folder: Path) -> bool:
    """Returns whether `folder` belongs to a search on several numbers of devices, not to a study."""
    return (folder / SCALING).is_file()


def write_group(folder: Path, group: StudyGroup) -> None:
    """Creates the folder and its `scaling.json`.

    Raises:
        InputError: the folder or file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}") from error
    with replacing(folder / SCALING) as part:
        part.write_text(json.dumps(to_json(group), indent=1) + "\n", encoding="utf-8")


def read_group(folder: Path) -> StudyGroup:
    """Returns the content of the folder's `scaling.json`.

    Raises:
        InputError: the file cannot be read or is invalid.
    """
    try:
        return from_json(StudyGroup, read_json(folder / SCALING))
    except InputError as error:
        raise InputError(f"{error}: start a new search") from error
    except ValueError as error:
        raise InputError(f"{folder / SCALING} cannot be used ({error}): start a new search") from error


def members_of(folder: Path) -> list[Path]:
    """Returns the folders of all studies in the group of the study in `folder`; empty if it belongs to none."""
    name, _, last = folder.name.rpartition("-")
    common = folder.parent / name
    if not name or not last.endswith("gpu") or not is_group(common):
        return []
    try:
        group = read_group(common)
    except InputError:
        return []
    members = [folder.parent / member(name, count) for count in group.counts]
    return members if folder in members else []
