"""Finds the folder of studies: `studies`, or for a submitted job a folder that outlives the job."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.options import option
from search_spaces.paths import expanded

_COPY = re.compile(r"/runtime_resources/working_dir_files/")
"""Path of the copy of a submitted job's working directory, which Ray deletes some time after the job."""


def user_path(text: str | Path) -> Path:
    """Returns the path that a user typed, with `~` and `~user` expanded.

    Raises:
        InputError: the user does not exist, or the path is invalid.
    """
    try:
        return expanded(text)
    except ValueError as error:
        raise InputError(str(error)) from error


def real_path(text: str | Path) -> Path:
    """Returns the absolute path with all links resolved.

    Raises:
        InputError: as in `user_path`, or the links form a circle.
    """
    path = user_path(text)
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(f"the path {path} cannot be followed: its links lead in a circle") from error


def absolute_path(text: str | Path) -> Path:
    """Returns the absolute path that a user typed, links not resolved; raises as `user_path` does."""
    return user_path(text).absolute()


def make_folder(path: Path) -> None:
    """Makes the folder and its parents where they are missing.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {path} cannot be made: {error.strerror}") from error


def studies_field(**declared: Any) -> Any:
    return option(text=default_folder, metavar="DIR", about="where studies are kept (default: %(default)s)", **declared)


def trust_field() -> Any:
    return option(False, about="use other users' folders", in_files="never")


def default_folder() -> str:
    """Returns the default of `--studies`: `studies` in the working directory, in a submitted job in the user's home."""
    return str(Path.home() / "studies") if in_a_copy(Path.cwd()) else "studies"


def is_path(text: str) -> bool:
    """Returns whether `text` is a study's path and not its name: it has a slash, or is `.` or `..`."""
    return os.sep in text or text in (os.curdir, os.pardir)


def located(studies: Path, text: str) -> tuple[Path, str]:
    """Returns the folder of studies and the study's name. `text` is a name in `studies`, or a path."""
    path = real_path(text)  # `..` has no name before it is resolved
    return (path.parent, path.name) if is_path(text) else (studies, text)


def studies_option(studies: Path) -> str:
    """Returns " --studies DIR" for a command line typed in the working directory; "" if DIR is the default."""
    return "" if studies == Path(default_folder()).absolute() else f" --studies {shlex.quote(str(studies))}"


def in_a_copy(folder: Path) -> bool:
    return _COPY.search(f"{folder}/") is not None
