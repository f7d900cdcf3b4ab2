"""The state of a run's folder: locked while it is written, begun with a plan, complete with an index."""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder
from trainers.data.index import PLAN_NAME, TokenIndex, read_index
from trainers.records.plain_files import read_json


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Creates the folder and locks it against other runs.

    Raises:
        InputError: the folder cannot be created, or another run writes to it.
    """
    make_folder(folder)
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"the folder --out {folder} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise InputError(f"another run of this command writes to {folder}: wait for its end") from error
    finally:
        os.close(handle)


def write_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Writes the plan into a new folder, or checks that it equals the folder's plan.

    Raises:
        InputError: the folder holds another plan, or other files.
    """
    path = folder / PLAN_NAME
    if not path.exists():
        others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
        if others:
            raise InputError(f"the folder --out {folder} holds other files, such as {others[0]}: give a new one")
        with replacing(path) as part:
            part.write_text(json.dumps(plan, indent=1) + "\n")
        return
    try:
        before = read_json(path)
    except InputError as error:
        raise InputError(f"{error}: give another --out") from error
    changed = [name for name in plan if before.get(name) != plan[name]]
    if changed:
        raise InputError(
            f"the folder --out {folder} was begun with different {' and '.join(changed)}: give the same inputs and"
            " options to resume it, or another --out"
        )


def finished(folder: Path) -> TokenIndex:
    """Returns the index of a complete folder.

    Raises:
        InputError: it cannot be read.
    """
    try:
        index = read_index(folder)
    except ValueError as error:
        raise InputError(str(error)) from error
    assert index is not None
    return index
