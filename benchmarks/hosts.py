"""Makes hosts on one machine: network namespaces on a switch, each with an address and a link that can be slow or cut,
and a Ray cluster with a node on each. Needs root and iproute2, on Linux.
"""

import contextlib
import dataclasses
import functools
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from platform.cluster.connection import LATE

_PORT = 6379
_STARTS_S = 240.0


class HostsError(RuntimeError):
    """Hosts cannot be made here; the text states why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A network namespace with an address and a link."""

    name: str
    address: str
    switch: str
    port: str
    """The link's end at the switch."""
    cores: str = ""
    """The cores that its processes run on, as taskset lists them; "" for all."""

    def popen(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Starts a command there; its output goes to `log`."""
        with log.open("ab") as out:
            full_command = ["ip", "netns", "exec", self.name, *command]
            full_command = ["taskset", "--cpu-list", self.cores, *full_command] if self.cores else full_command
            return subprocess.Popen(full_command, env=dict(environment), stdout=out, stderr=out, start_new_session=True)

    def pids(self) -> list[int]:
        """Returns the ids of all processes there."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """Sends SIGKILL to all its processes: the host is gone, as in a power cut."""
        until_s = time.monotonic() + 30
        while (pids := self.pids()) and time.monotonic() < until_s:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def limit(self, mbit_per_s: float) -> None:
        """Holds the link to this rate in either direction."""
        # tbf needs a burst of what the link carries between two ticks of the kernel's clock, a millisecond.
        burst_kb = max(256, math.ceil(mbit_per_s / 8))
        rate = ["rate", f"{mbit_per_s:g}mbit", "burst", f"{burst_kb}kb", "latency", "100ms"]
        for space, device in ((self.name, "eth0"), (self.switch, self.port)):
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def cut(self) -> None:
        """Cuts the link."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def mend(self) -> None:
        """Restores the link."""
        _ip("-n", self.switch, "link", "set", self.port, "up")


@contextlib.contextmanager
def hosts(count: int, *, mbit_per_s: float | None = None, cores: Sequence[str] = ()) -> Generator[tuple[Host, ...]]:
    """Yields `count` hosts, each with a link of `mbit_per_s` in either direction (None: as fast as the kernel copies),
    and each on one of the lists of `cores`, in turn (none: on all).

    Processes and namespaces are gone at the end.

    Raises:
        HostsError: this kernel or user may not make them.
    """
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise HostsError("there is no iproute2 (Debian: apt-get install iproute2)")
    mark = f"ls{secrets.token_hex(3)}"
    switch, created = f"{mark}-switch", list[Host]()
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number in range(1, count + 1):
            host = Host(
                name=f"{mark}-{number}",
                address=f"10.77.0.{number}",
                switch=switch,
                port=f"port{number}",
                cores=cores[(number - 1) % len(cores)] if cores else "",
            )
            created.append(host)
            _ip("netns", "add", host.name)
            ends = ["link", "add", "eth0", "netns", host.name, "type", "veth", "peer", "name", host.port]
            _ip(*ends, "netns", switch)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "lo", "up")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", switch, "link", "set", host.port, "master", "bridge")
            _ip("-n", switch, "link", "set", host.port, "up")
            if mbit_per_s is not None:
                host.limit(mbit_per_s)
        yield tuple(created)
    finally:
        for host in created:
            with contextlib.suppress(HostsError):
                host.kill()
        for name in (switch, *(host.name for host in created)):
            with contextlib.suppress(HostsError):
                _ip("netns", "del", name)


class RayHosts:
    """A Ray cluster on hosts, the head on the first. `folder` must have a short path: sockets lie in it."""

    def __init__(self, on: Sequence[Host], folder: Path) -> None:
        self.hosts = tuple(on)
        self.folder = folder
        self.address = f"{self.hosts[0].address}:{_PORT}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))},
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "eth0",
            # Nothing outside the namespaces reaches them.
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def start(self, number: int, *, num_cpus: int = 1, environment: Mapping[str, str] | None = None) -> None:
        """Starts the node on host `number`, from 0: the head first. `environment` is added to its processes'.

        Raises:
            HostsError: it did not come up in time.
        """
        host = self.hosts[number]
        role = ["--head", f"--port={_PORT}", f"--temp-dir={self.folder / 'ray'}", "--include-dashboard=false"]
        role = [*role, "--no-monitor"] if not number else [f"--address={self.address}"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *role, "--block", f"--num-cpus={num_cpus}"]
        command += [f"--node-ip-address={host.address}", "--object-store-memory=100000000", "--disable-usage-stats"]
        command += ["--include-log-monitor=false"]
        log = self.folder / f"node{number}.log"
        until_s = time.monotonic() + _STARTS_S
        before = 0
        while number and not (before := self.num_alive()):  # a head that is busy may not answer in time
            if time.monotonic() > until_s:
                raise HostsError(f"the head on {self.hosts[0].name} does not answer")
        start = functools.partial(host.popen, command, {**self.environment, **(environment or {})}, log)
        process, offset = start(), 0
        until_s = time.monotonic() + _STARTS_S
        while self.num_alive() <= before:
            has_exited = process.poll() is not None
            if time.monotonic() > until_s or (has_exited and LATE not in log.read_text()[offset:]):
                raise HostsError(f"Ray did not start on host {number}: {log.read_text()[-2000:]}")
            if has_exited:
                host.kill()
                offset = len(log.read_text())
                process = start()
            time.sleep(0.5)

    def num_alive(self) -> int:
        """Returns the number of nodes that the head counts as alive; 0 before it answers."""
        program = (
            "import sys; from ray._raylet import GcsClient;"
            " print(sum(n.state == 0 for n in GcsClient(address=sys.argv[1]).get_all_node_info(timeout=5).values()))"
        )
        command = ["ip", "netns", "exec", self.hosts[0].name, sys.executable, "-c", program, self.address]
        try:
            completed = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=30, check=False
            )
        except subprocess.TimeoutExpired:
            return 0
        return int(completed.stdout) if completed.returncode == 0 else 0


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise HostsError(f"{' '.join(command)}: {completed.stderr.strip() or completed.returncode}")
    return completed.stdout
