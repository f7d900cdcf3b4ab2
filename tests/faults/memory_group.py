"""A memory control group of the kernel, in which a host's memory can run out for real without hurting anyone else."""

import contextlib
import os
import re
import time
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A group of this test's own; use it with `with`, in which `exists` says whether this machine allows one."""

    def __init__(self, name: str) -> None:
        first = (_MOUNT / "memory").is_dir()
        self.path = (_MOUNT / "memory" if first else _MOUNT) / name
        self._limit = "memory.limit_in_bytes" if first else "memory.max"
        self._events = "memory.oom_control" if first else "memory.events"
        self._usage = "memory.usage_in_bytes" if first else "memory.current"
        self.exists = False

    def __enter__(self) -> "MemoryGroup":
        with contextlib.suppress(OSError):
            self.path.mkdir()
            self.exists = (self.path / self._limit).exists()
        return self

    def __exit__(self, *_: object) -> None:
        until_s = time.monotonic() + 20
        while self.path.is_dir() and time.monotonic() < until_s:  # until the last of its processes is gone
            with contextlib.suppress(OSError):
                self.path.rmdir()
            time.sleep(0.2)

    def join(self) -> None:
        """This process, and what it starts, are of the group from now on; where there is one."""
        if self.exists:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def run_out(self) -> None:
        """Takes memory away, first what the kernel can have back, then the rest, until it has killed for want of it."""
        kills, step = self.kills(), 32 * 2**20
        limit = self._number(self._usage, r"^(\d+)")
        until_s = time.monotonic() + 15
        try:
            while self.kills() == kills:
                assert time.monotonic() < until_s, "the kernel killed nobody"
                try:
                    (self.path / self._limit).write_text(str(limit - step))
                    limit -= step
                except OSError:  # so much is in use just now, and cannot be had back
                    step = 4 * 2**20
                time.sleep(0.01)
        finally:
            (self.path / self._limit).write_text("-1" if "limit" in self._limit else "max")

    def kills(self) -> int:
        """Processes that the kernel has killed in it."""
        return self._number(self._events, r"^oom_kill (\d+)")

    def _number(self, file: str, pattern: str) -> int:
        found = re.search(pattern, (self.path / file).read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
