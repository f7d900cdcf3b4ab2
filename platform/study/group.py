"""The folder of several searches of one command, of several models or on several numbers of devices.

Each search has an ordinary study beside this folder: `NAME-4gpu` for four devices, `NAME-gpt2` for a model,
`NAME-gpt2-4gpu` for both. Their journals are authoritative. The folder holds the shared options (`scaling.json`) and
outputs made from the studies.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder
from trainers.records.plain_files import read_json
from trainers.spec.codec import from_json, to_json

SCALING = "scaling.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyGroup:
    """The content of `scaling.json`."""

    counts: tuple[int, ...]
    """Numbers of devices, ascending; empty for the models' own."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """The options shared by all studies, keyed as in `platform.search.setup.options.StudyOptions`."""
    models: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """The space of each model by the model's part of a study's name, in order; empty for one model."""

    def members(self, name: str) -> list[str]:
        """Returns the names of the studies of the group `name`, model by model."""
        counts: tuple[int | None, ...] = self.counts or (None,)
        return [member(name, count, model) for model in self.models or ("",) for count in counts]


def member(name: str, count: int | None = None, model: str = "") -> str:
    """Returns the name of the study on `count` devices (None: the model's own number) and of this model."""
    return "-".join(filter(None, (name, model, "" if count is None else f"{count}gpu")))


def is_group(folder: Path) -> bool:
    """Returns whether `folder` belongs to several searches of one command, not to a study."""
    return (folder / SCALING).is_file()


def write_group(folder: Path, group: StudyGroup) -> None:
    """Creates the folder and its `scaling.json`.

    Raises:
        InputError: the folder or file cannot be written.
    """
    make_folder(folder)
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
    name = folder.name
    while name := name.rpartition("-")[0]:
        if not is_group(folder.parent / name):
            continue
        try:
            members = read_group(folder.parent / name).members(name)
        except InputError:
            continue
        if folder.name in members:
            return [folder.parent / other for other in members]
    return []
