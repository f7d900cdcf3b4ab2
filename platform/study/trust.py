"""Checks who owns a study: the journal of another user names code that `--resume` would run."""

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from platform.common.errors import InputError


def other_owner(paths: Iterable[Path]) -> str:
    """Returns the name of the first owner of `paths` who is neither this user nor root; "" where there is none."""
    for path in paths:
        try:
            owner = path.stat().st_uid
        except OSError:
            continue  # what is not there is told by whoever opens it
        if owner not in (0, os.geteuid()):
            try:
                return pwd.getpwuid(owner).pw_name
            except KeyError:
                return str(owner)
    return ""


def check_owner(paths: Iterable[Path], *, trusted: bool) -> None:
    """Refuses to resume a study, or to run a space file, that belongs to neither this user nor root.

    Raises:
        InputError: a path is another user's, and the user did not give `--trust`.
    """
    for path in () if trusted else paths:
        if owner := other_owner([path]):
            raise InputError(
                f"{path} belongs to user {owner}, and resuming a study runs the code that it names: look at it,"
                " then give --trust"
            )


def not_written(owner: str) -> str:
    """Returns why a report of user `owner`'s study does not write to its folder and MLflow."""
    return f"The study belongs to user {owner}: it is shown, and neither files nor MLflow are written without --trust."
