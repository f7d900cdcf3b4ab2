"""The one gate before a folder that a study, a training or a comparison left: who wrote it, and where it leads.

A journal names a space file, which is code, and results are written beside it. Who owns a folder says nothing of one
that came by tar, scp or git: therefore its texts come without control characters (`read_json`, `journal_lines`), a
space file must be the one that the study began with, and no engine is imported out of such a folder.
"""

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from trainers.records.plain_files import refuse_links
from trainers.spec.errors import InputError


def admit(folder: Path, names: Iterable[str] = (), *, trusted: bool) -> None:
    """Refuses a folder that holds a link, or that belongs, as one of the files `names` in it, to neither this user nor
    root; nothing need be there. `trusted` says that the user gave `--trust`, which allows any owner.

    Raises:
        InputError: it is another user's, or something in it is a link.
    """
    if not folder.is_dir():
        return  # a new one, or a file, which whoever opens it looks at
    refuse_links(folder)
    check_owner((folder, *(folder / name for name in names)), trusted=trusted)


def check_owner(paths: Iterable[Path], *, trusted: bool) -> None:
    """Refuses to go on from what belongs to neither this user nor root.

    Raises:
        InputError: a path is another user's, and the user did not give `--trust`.
    """
    for path in () if trusted else paths:
        if owner := other_owner([path]):
            raise InputError(
                f"{path} belongs to user {owner}, who could make this command run code or write files as you: look at"
                " it, then give --trust"
            )


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


def not_written(owner: str) -> str:
    """Returns why a report of user `owner`'s study does not write to its folder and MLflow."""
    return f"The study belongs to user {owner}: it is shown, and neither files nor MLflow are written without --trust."
