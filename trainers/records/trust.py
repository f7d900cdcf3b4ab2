"""The single check of a folder left by a study, a training or a comparison: who wrote it, and where its links lead.

A journal names a space file, which is code, and results are written beside it. The owner says nothing about a folder
received by tar, scp or git. So control characters are removed from its texts (`read_json`, `journal_lines`), a space
file must be the one with which the study began, and no engine is imported from such a folder.
"""

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from trainers.records.plain_files import refuse_links
from trainers.spec.errors import InputError


def admit(folder: Path, names: Iterable[str] = (), *, trusted: bool) -> None:
    """Refuses a folder that contains a link, and a folder that belongs, or whose files `names` belong, to neither this
    user nor root. A missing folder is allowed. `trusted` means that the user gave `--trust`, which allows any owner.

    Raises:
        InputError: it belongs to another user, or contains a link.
    """
    if not folder.is_dir():
        return  # a new folder, or a file, which is checked when it is opened
    refuse_links(folder)
    check_owner((folder, *(folder / name for name in names)), trusted=trusted)


def check_owner(paths: Iterable[Path], *, trusted: bool) -> None:
    """Refuses to continue from files that belong to neither this user nor root.

    Raises:
        InputError: a path belongs to another user, and the user did not give `--trust`.
    """
    for path in () if trusted else paths:
        if owner := other_owner([path]):
            raise InputError(
                f"{path} belongs to user {owner}, who could make this command run code or write files as you: look at"
                " it, then give --trust"
            )


def other_owner(paths: Iterable[Path]) -> str:
    """Returns the name of the first owner of `paths` who is neither this user nor root; "" if there is none."""
    for path in paths:
        try:
            owner = path.stat().st_uid
        except OSError:
            continue  # missing files are reported when they are opened
        if owner not in (0, os.geteuid()):
            try:
                return pwd.getpwuid(owner).pw_name
            except KeyError:
                return str(owner)
    return ""


def not_written(owner: str) -> str:
    """Returns the reason why a report of user `owner`'s study does not write to its folder and MLflow."""
    return f"The study belongs to user {owner}: it is shown, and neither files nor MLflow are written without --trust."
