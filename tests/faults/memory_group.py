"""A memory control group of the kernel, in which memory can run out without affecting other processes."""

import contextlib
import ctypes
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
"""Error numbers that mean: the kernel has no control groups, or none that this user may write. Other errors are faults.
The last two occur in a container that sees its own version 2 group as the root, where groups below a group with
processes are refused.
"""
_NEW_VIEW, _PRIVATE, _BIND = 0x20000, 0x44000, 0x1000
"""Numbers of Linux: a new view of the mounts, private ones and all below, a folder in another place."""
_ROOM_MIB = 256
"""More than steps of a tiny model allocate and free: version 1 refuses a limit below the present use."""
_LONGEST_S = 300.0
_HUNGRY = """
import re, sys
taken = []
while re.search(r"^oom_kill (.*)", open(sys.argv[1]).read(), re.MULTILINE)[1] == sys.argv[2]:
    taken.append(bytearray(b"x") * 2**22)
"""


class MemoryGroup:
    """The test's own group; use it with `with`. `exists` is whether this machine allows one."""

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
        """Moves this process, with its future children, into the group if there is one."""
        if self.exists:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def join_alone(self) -> None:
        """Joins the group in a view of the file system in which it is the only one: Ray's memory monitor reads the
        limit and the use of the whole machine's group.
        """
        self.join()
        system = ctypes.CDLL(None, use_errno=True)
        mount = str(_MOUNT / "memory" if self._first else _MOUNT).encode()
        for result in (
            system.unshare(_NEW_VIEW),
            system.mount(b"none", b"/", None, _PRIVATE, None),
            system.mount(str(self.path).encode(), mount, None, _BIND, None),
        ):
            if result:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def limit(self, num_bytes: int) -> None:
        """Limits the memory of the group."""
        (self.path / self._limit).write_text(str(num_bytes))

    def used(self) -> int:
        """Returns the bytes that the group's processes use, with the files that they read."""
        return int((self.path / self._usage).read_text())

    def run_out(self, among: Sequence[psutil.Process]) -> str:
        """Lets an unused process allocate all remaining memory of the group until the kernel has killed another one;
        returns the command of the killed process.

        The kill must not depend on the next allocations of other processes. The kernel chooses the largest of the
        processes that Ray offers (`oom_score_adj`): a training worker, unless a test offers another.
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
        """Returns the number of processes that the kernel has killed in the group."""
        matched = re.search(r"^oom_kill (\d+)", (self.path / self._events).read_text(), re.MULTILINE)
        return int(matched[1]) if matched else 0


def _first_to_end(commands: Mapping[psutil.Process, str]) -> str:
    """Returns the command of the first process to end; "" if none ends in time."""
    until_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < until_s:
        if gone := [command for process, command in commands.items() if not lives(process)]:
            return gone[0]
    return ""
