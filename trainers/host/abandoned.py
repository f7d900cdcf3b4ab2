"""Ends processes of a user's command whose supervisor was killed, so that nobody else would end them.

A command's processes have `RUN_MARK` in their environment; the supervisor of a run (`trainers/commands/supervisor.py`)
has the same mark as an argument. Such processes would hold their GPUs and cores until somebody finds them.
"""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

RUN_MARK = "LAYOUT_SEARCH_RUN"
"""Environment variable that marks the processes of one run of a command."""
_SUPERVISOR = b"supervisor.py"


def end_abandoned() -> list[int]:
    """Kills the abandoned processes of this machine that this user may kill; returns their ids.

    The run that this process itself belongs to, as a search started by a command would, is left alone.
    """
    killed: list[int] = []
    for pid in _abandoned():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def _abandoned() -> Iterator[int]:
    marks: dict[int, bytes] = {}
    supervised = {os.environ.get(RUN_MARK, "").encode()}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        # The environment first: a supervisor that starts between the looks has the mark and is not known as one yet.
        match = _marked(_read(process / "environ"))
        words = _read(process / "cmdline").split(b"\0")
        if len(words) > 3 and words[2].endswith(_SUPERVISOR):
            supervised.add(words[3])
        elif match:
            marks[int(process.name)] = match[1]
    yield from (pid for pid, mark in marks.items() if mark not in supervised)


def _marked(environment: bytes) -> re.Match[bytes] | None:
    return re.search(rb"(?:^|\0)" + RUN_MARK.encode() + rb"=([0-9a-f]{32})(?:\0|$)", environment)


def _read(path: Path) -> bytes:
    """Returns the content of a process's file; empty if it has ended, or is another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
