"""A memory control group of the kernel, in which a host's memory can run out for real without hurting anyone else."""

import contextlib
import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.whole_searches.session import lives

_MOUNT = Path("/sys/fs/cgroup")
REFUSED = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EOPNOTSUPP)
"""Error numbers of a kernel without control groups, or with none for this user to write; all else is a fault. The last
two are for a container that sees its own group of version 2 as the root: groups below one with processes are refused.
"""
_ROOM_MIB = 256
"""More than steps of a tiny model take and give back: version 1 refuses a limit below what is in use just then."""
_LONGEST_S = 300.0
_HUNGRY = """
import re, sys
taken = []
while re.search(r"^oom_kill (.*)", open(sys.argv[1]).read(), re.MULTILINE)[1] == sys.argv[2]:
    taken.append(bytearray(b"x") * 2**22)
"""


class MemoryGroup:
    """A group of this test's own; use it with `with`, in which `exists` says whether this machine allows one."""

    def __init__(self, name: str) -> None:
        self._first = first = (_MOUNT / "memory").is_dir()
        self.path = (_MOUNT / "memory" if first else _MOUNT) / name
        self._limit = "memory.limit_in_bytes" if first else "memory.max"
        self._events = "memory.oom_control" if first else "memory.events"
        self._swap = "memory.swappiness" if first else "memory.swap.max"
        self._usage = "memory.usage_in_bytes" if first else "memory.current"
        self.exists = False

    def __enter__(self) -> "MemoryGroup":
        try:
            if not self._first:
                (_MOUNT / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            self.exists = (self.path / self._limit).exists()
            (self.path / self._swap).write_text("0")
        except OSError as error:
            if error.errno not in REFUSED:
                raise
        return self

    def __exit__(self, *_: object) -> None:
        until_s = time.monotonic() + 120
        while self.path.is_dir() and time.monotonic() < until_s:  # until the last of its processes is gone
            with contextlib.suppress(OSError):
                self.path.rmdir()
            time.sleep(0.2)

    def join(self) -> None:
        """Puts this process, and what it starts, into the group, where there is one."""
        if self.exists:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def run_out(self, among: Sequence[psutil.Process]) -> str:
        """Lets an unused process take all the memory that the group may still have, until the kernel has killed another
        of it; returns which of these processes that was, by its command.

        The kill must not depend on what the other processes allocate next. The kernel itself chooses the process:
        of those that Ray offers it (`oom_score_adj`) the largest, which is a worker that trains, unless a test offers
        another.
        """
        commands: dict[psutil.Process, str] = {}
        for process in among:
            with contextlib.suppress(psutil.Error, IndexError):  # one that ends just now
                commands[process] = process.cmdline()[0]
        usage = int((self.path / self._usage).read_text())
        limit = self.path / self._limit
        limit.write_text(str(usage + _ROOM_MIB * 2**20))
        hungry = [sys.executable, "-S", "-c", _HUNGRY, str(self.path / self._events), str(self.kills())]
        try:
            with subprocess.Popen(hungry, preexec_fn=self.join) as taking:
                # From the start: peers of the one that was killed end a little later, and are not to be taken for it.
                killed = _first_to_end(commands)
                assert taking.wait(_LONGEST_S) == 0
        finally:
            limit.write_text("-1" if "limit" in self._limit else "max")
        return killed

    def kills(self) -> int:
        """Returns the number of processes that the kernel has killed in it."""
        matched = re.search(r"^oom_kill (\d+)", (self.path / self._events).read_text(), re.MULTILINE)
        return int(matched[1]) if matched else 0


def _first_to_end(commands: Mapping[psutil.Process, str]) -> str:
    """Returns the command of the process that ends first; "" where none ends in time."""
    until_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < until_s:
        if gone := [command for process, command in commands.items() if not lives(process)]:
            return gone[0]
    return ""
