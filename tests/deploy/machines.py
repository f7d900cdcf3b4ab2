"""Machines on one machine: each with its own processes, host name, mounts and network.

`ray up`, `ray down` and `ray symmetric-run` call `ray stop`, which ends every visible Ray: here only those of the same
machine. Needs root, iproute2 and util-linux, on Linux.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.hosts import Host, HostsError, hosts

_READY_S = 60.0
_INIT = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""
"""First process of a machine, which reaps orphans like init. Without it Ray's end waits for zombies."""


class Machine:
    """A running machine."""

    def __init__(self, host: Host, init_pid: int) -> None:
        self.host = host
        self.init_pid = init_pid

    def popen(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command on the machine; its output goes to `log`."""
        with log.open("ab") as out:
            return subprocess.Popen(self._inside(command), stdout=out, stderr=subprocess.STDOUT, env=environment)

    def run(
        self, *command: str, timeout_s: float = 120, environment: Mapping[str, str] | None = None, check: bool = True
    ) -> str:
        """Runs a command on the machine and returns what it prints.

        Raises:
            AssertionError: the command failed and `check` is set.
        """
        completed = subprocess.run(
            self._inside(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
        assert not check or completed.returncode == 0, (
            f"{' '.join(command)}: exit code {completed.returncode}: {completed.stdout}"
        )
        return completed.stdout

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.init_pid), "--net", "--pid", "--uts", "--mount", "--", *command]


@contextlib.contextmanager
def machines(count: int, folder: Path, setup: str = "") -> Generator[tuple[Machine, ...]]:
    """Yields `count` machines node1, node2, ..., each of which has first run the shell script `setup`, with its number
    in $NUMBER.

    Each has an empty /tmp and /run. All of their processes are gone at the end.

    Raises:
        HostsError: this kernel or user may not create the machines, or the script failed.
    """
    names = "".join(f"10.77.0.{number} node{number}\n" for number in range(1, count + 1))
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    created: list[Machine] = []
    with hosts(count) as bare:
        try:
            for number, host in enumerate(bare, 1):
                ready = folder / f"ready{number}"
                script = folder / f"machine{number}.sh"
                script.write_text(
                    f"set -eu\nexport NUMBER={number}\nhostname node{number}\n"
                    "mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm\n"
                    f"mount --bind {folder}/hosts /etc/hosts\n{setup}\ntouch {ready}\n"
                    f"exec {sys.executable} -c '{_INIT}'\n"
                )
                # Not `ip netns exec`: it mounts /sys anew and so hides the control groups.
                inside = ["unshare", "--uts", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
                log = folder / f"machine{number}.log"
                outer = _start(["nsenter", f"--net=/run/netns/{host.name}", *inside, "bash", str(script)], log)
                created.append(Machine(host, _first_of(outer, ready, log)))
            yield tuple(created)
        finally:
            for machine in created:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(machine.init_pid, signal.SIGKILL)


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


def _first_of(outer: subprocess.Popen[bytes], ready: Path, log: Path) -> int:
    """Waits until the machine's script has finished, and returns the id of the machine's first process."""
    until_s = time.monotonic() + _READY_S
    while not ready.exists():
        if outer.poll() is not None or time.monotonic() > until_s:
            raise HostsError(f"a machine did not come up: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    (first,) = psutil.Process(outer.pid).children()
    return first.pid
