"""The options of `platform.search` as frozen values: those that a study keeps, and those of one command."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import search_spaces
from platform.common.errors import InputError
from platform.study.folder import is_path, user_path
from trainers.records.journal import StudyHeader
from trainers.spec.codec import from_json

_BUILT_IN = frozenset((*search_spaces.names(), *search_spaces.reference.names()))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyOptions:
    """Options that define a study; a resumed one keeps all of them. Fields are named as their options are."""

    space: str | None = None
    """A space's name, or the absolute path of its file; None where a layout file states everything."""
    set: tuple[str, ...] = ()
    layout: str | None = None
    learn_from: str | None = None
    searcher: str = "guided"
    seed: int = 0
    repeats: int | None = None
    steps: int | None = None
    whole_steps: bool = False
    all: bool = False
    device_memory_gib: float | None = None
    gpus: tuple[int, ...] = ()
    """Numbers of devices, ascending; empty to follow the space or the cluster."""
    tokens: float | None = None
    price_per_gpu_h: float | None = None
    data: str | None = None

    def with_absolute_paths(self) -> "StudyOptions":
        """Returns the same options with absolute paths, valid in any working folder."""
        space, old = self.space, self.learn_from
        # A built-in space comes before any file or folder of its name.
        if space is not None and space not in _BUILT_IN and user_path(space).exists():
            space = _absolute(space)
        if old is not None and is_path(old):
            old = _absolute(old)
        layout, data = (path and _absolute(path) for path in (self.layout, self.data))
        return dataclasses.replace(self, space=space, learn_from=old, layout=layout, data=data)

    def files(self) -> tuple[Path, ...]:
        """Returns the space's file, which may be code; empty for a built-in space and a model of the hub."""
        without_file = self.space is None or self.space in _BUILT_IN or search_spaces.is_of_hub(self.space)
        return () if without_file else (user_path(str(self.space)),)

    def differences(self, stored: "StudyOptions") -> list[str]:
        """Returns the options given here that differ from those `stored` with the study, as a user types them."""
        default = StudyOptions()
        names = (field.name for field in dataclasses.fields(self))
        changed = [name for name in names if getattr(self, name) not in (getattr(default, name), getattr(stored, name))]
        # Where no revision is asked for, the stored one is kept.
        if "space" in changed and str(stored.space).partition("@")[0] == self.space:
            changed.remove("space")
        return ["the space" if name == "space" else "--" + name.replace("_", "-") for name in changed]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """All options of one command. Fields are named as their options are."""

    study: StudyOptions = dataclasses.field(default_factory=StudyOptions)
    max_trials: int | None = None
    time_budget_s: float | None = None
    gpu_s: float | None = None
    profile: bool = False
    safe: bool = False
    """Whether the winner is trained for some steps at the end, in the way that `platform.train` begins."""
    address: str | None = None
    wait_for_gpus: float
    """Seconds."""
    exclude_slow: bool = False
    trust: bool = False
    studies: Path
    """The folder of studies, absolute."""
    name: str | None = None
    resume: str | None = None
    """The study in `studies` to resume."""
    auto_resume: bool = False
    """Whether to resume the study `name` where it exists."""
    copy_to: str | None = None
    """A folder or an address to which complete lines of the journal are copied."""
    dry_run: bool = False
    json: bool = False


def options_of(header: StudyHeader) -> StudyOptions:
    """Returns the options with which the study of this first line began.

    Raises:
        InputError: this version does not know one of them.
    """
    return read_options(header.options)


def read_options(stored: Mapping[str, Any]) -> StudyOptions:
    """Returns the `stored` options of a file.

    Raises:
        InputError: this version does not know one of them.
    """
    try:
        return from_json(StudyOptions, stored)
    except ValueError as error:
        raise InputError(f"the study was begun with options that this version cannot read: {error}") from error


def _absolute(path: str) -> str:
    return str(user_path(path).absolute())
