"""Runs a command and ends all of its processes when it ends or when the starter of this process is gone.

    python supervisor.py MARK FOLDER WORD...

Each process of the command has MARK in its environment or descends from this process, which Linux makes the parent of
orphans: so processes are found that left its session or have another environment. This process's standard input is a
pipe from its starter; when the pipe closes, the command is ended and FOLDER, which holds its files, is removed. Imports
only the standard library, because it starts with every run.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

GRACE_S = 3.0
"""Seconds between asking processes to end and killing them."""
_POLL_S = 0.05
_SET_CHILD_SUBREAPER = 36
"""Option of `prctl` by which orphans below this process become its children."""


def of_command(mark: str, supervisor: int) -> list[int]:
    """Returns the ids of a command's running processes: those with the mark in their environment, and those that
    descend from its supervisor, which is not among them.
    """
    parents: dict[int, int] = {}
    pids: list[int] = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError):  # it has ended
            # Behind the name, which is in parentheses and may hold any character: the state, and the parent.
            state, parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state in b"ZX":
                continue
            parents[int(process.name)] = int(parent)
            if mark.encode() in (process / "environ").read_bytes():
                pids.append(int(process.name))
    family = {supervisor, *pids}
    while more := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= more
    return sorted(family - {supervisor})


def end(mark: str) -> None:
    """Ends every process of the command but this one."""
    until_s, number = time.monotonic() + GRACE_S, signal.SIGTERM
    while others := of_command(mark, os.getpid()):
        if time.monotonic() > until_s:
            number = signal.SIGKILL
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        time.sleep(_POLL_S)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code, or 128 plus the number of the signal that ended it."""
    mark, folder, *words = arguments
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    # The pipe's end ends this process after the others. An ignored signal would be ignored by the command too, so a
    # handler is set.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return 127
    is_left = False
    while process.poll() is None and not is_left:
        is_left = bool(select.select([0], [], [], _POLL_S)[0])
    end(mark)
    code = process.wait()
    if is_left:
        shutil.rmtree(folder, ignore_errors=True)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
