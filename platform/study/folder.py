"""The folder of studies: `studies`, or for submitted jobs a folder that outlives them."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.options import option
from search_spaces.paths import expanded

_COPY = re.compile(r"/runtime_resources/working_dir_files/")
"""Path of the working directory that Ray copies for a submitted job and removes some time after it."""


def user_path(text: str | Path) -> Path:
    """Returns the path that a user typed, with home folders in place of `~` and `~user`.

    Raises:
        InputError: there is no such user, or no file system takes such a path.
    """
    try:
        return expanded(text)
    except ValueError as error:
        raise InputError(str(error)) from error


def real_path(text: str | Path) -> Path:
    """Returns the absolute path that a typed one leads to, through all links.

    Raises:
        InputError: as `user_path`, or its links lead in a circle.
    """
    path = user_path(text)
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(f"the path {path} cannot be followed: its links lead in a circle") from error


def absolute_path(text: str | Path) -> Path:
    """Returns the absolute path that a user typed; see `user_path`."""
    return user_path(text).absolute()


def studies_field(**declared: Any) -> Any:
    """Returns the field of `--studies`."""
    return option(text=default_folder, metavar="DIR", about="where studies are kept (default: %(default)s)", **declared)


def trust_field() -> Any:
    """Returns the field of `--trust`, of commands that run nothing of a study."""
    return option(False, about="use others' folders", in_files="never")


def default_folder() -> str:
    """Returns `studies` in the working directory; in a submitted job, `studies` in the home of the head node's user."""
    return str(Path.home() / "studies") if in_a_copy(Path.cwd()) else "studies"


def is_path(text: str) -> bool:
    """Returns whether `text` is the path of a study's folder and not a name: it has a slash, or is `.` or `..`."""
    return os.sep in text or text in (os.curdir, os.pardir)


def located(studies: Path, text: str) -> tuple[Path, str]:
    """Returns the folder of studies and the study's name, given its name in `studies` or its path."""
    path = real_path(text)  # `..` has no name of its own
    return (path.parent, path.name) if is_path(text) else (studies, text)


def studies_option(studies: Path) -> str:
    """Returns the option by which a command typed here finds the studies in the folder, after a blank; "" for none."""
    return "" if studies == Path(default_folder()).absolute() else f" --studies {shlex.quote(str(studies))}"


def in_a_copy(folder: Path) -> bool:
    """Returns whether `folder` is Ray's copy of the working directory of a job."""
    return _COPY.search(f"{folder}/") is not None
