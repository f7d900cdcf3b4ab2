"""Ports that tests give to servers: no other process gets one between the choice and the server's start."""

import subprocess
import sys
from pathlib import Path

from tests.loopback import free_port

ROOT = Path(__file__).parents[2]


def test_ports_of_several_processes_are_distinct_and_the_kernel_gives_none_of_them() -> None:
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = "print(*(free_port() for _ in range(20)), flush=True)"
    script = f"import sys; from tests.loopback import free_port; {ports}; sys.stdin.read()"

    def other() -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    with other() as first, other() as second:
        every = [free_port() for _ in range(20)]
        for process in (first, second):
            assert process.stdout is not None and process.stdin is not None
            every += map(int, process.stdout.readline().split())
        for process in (first, second):
            process.communicate()
    assert len(set(every)) == len(every) == 60
    assert max(every) < given_from


def test_no_test_asks_the_kernel_for_a_port_that_a_server_takes_later() -> None:
    """Looks for a socket that is closed before its number is used."""
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "return listener.getsockname()" in path.read_text() and path != Path(__file__)
    ]
    assert not found, "take tests.loopback.free_port"
