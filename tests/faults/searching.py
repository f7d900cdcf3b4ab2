"""A search that a user starts on the first of several hosts."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from benchmarks.hosts import Host, RayHosts
from platform.study.journal import Tail
from tests import needs
from tests.faults.memory_group import REFUSED
from tests.whole_searches.session import ROOT, lives
from trainers.records.journal import Line

LONGEST_S = 1200.0
QUICK = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30"}
"""Train's time limit for placing and starting workers (60 s by default); a shorter one shows a lost node sooner."""
_GROUPS = """
import sys
from ray._private.internal_api import get_state_from_address
table = get_state_from_address(sys.argv[1]).placement_group_table()
print(sum(each["state"] != "REMOVED" for each in table.values()))
"""


def nothing_left(cluster: RayHosts) -> None:
    """Checks that a finished search soon has no worker on any host and no placement group in the cluster."""
    until_s = time.monotonic() + LONGEST_S
    while workers := [pid for host in cluster.hosts for pid in host.pids() if _is_worker(pid)]:
        assert time.monotonic() < until_s, f"workers were left behind: {workers}"
        time.sleep(0.5)
    command = ["ip", "netns", "exec", cluster.hosts[0].name, sys.executable, "-c", _GROUPS, cluster.address]
    counted = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=600, check=True)
    assert int(counted.stdout) == 0, "placement groups were left behind"


def gone(cluster: RayHosts, num_nodes: int) -> None:
    """Waits until the head counts at most `num_nodes` nodes including itself."""
    until_s = time.monotonic() + 600
    while cluster.num_alive() > num_nodes:
        assert time.monotonic() < until_s
        time.sleep(0.5)


@contextlib.contextmanager
def on_a_fifth_of_a_core(host: Host) -> Generator[None]:
    """Limits a host's processes to 20 % of a core; skips if this user may not write control groups."""
    mount = Path("/sys/fs/cgroup")
    first = (mount / "cpu").is_dir()
    group = (mount / "cpu" if first else mount) / host.name
    # In slices of 20 ms, shorter than what a probe times once: a fifth of a long one is none where it begins.
    limits = {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "4000"} if first else {"cpu.max": "4000 20000"}
    try:
        if not first:
            (mount / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        for name, limit in limits.items():
            (group / name).write_text(limit)
        for pid in host.pids():
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        with contextlib.suppress(OSError):
            group.rmdir()
        needs.refused("control groups of processors", str(error))
    try:
        yield
    finally:
        host.kill()
        time.sleep(0.5)
        group.rmdir()


def _is_worker(pid: int) -> bool:
    """Returns whether it is a running train worker."""
    try:
        process = psutil.Process(pid)
        return "RayTrainWorker" in process.cmdline()[0] and lives(process)
    except (psutil.Error, IndexError):
        return False


class Searching:
    """A running search; use it with `with`."""

    def __init__(
        self,
        cluster: RayHosts,
        *argv: str,
        name: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        training: Sequence[str] = (),
    ) -> None:
        """Starts the search; `training` is the command to search, if any."""
        studies = cluster.folder / "studies"
        self.journal = studies / name / "journal.jsonl"
        self.log = cluster.folder / f"{name}.log"
        command = ["env", "-C", str(ROOT), sys.executable, "-m", "platform.search", *argv]
        command += ["--studies", str(studies), "--address", cluster.address, "--name", name]
        command += ["--", *training] if training else []
        self.process = cluster.hosts[0].popen(command, {**cluster.environment, **environment}, self.log)

    def __enter__(self) -> "Searching":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        """The output of the search so far."""
        return self.log.read_text()

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of the search's journal."""
        return Tail(self.journal).read()

    def of(self, kind: type[Line]) -> list[Any]:
        """Returns the journal's lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Waits until `condition` returns something."""
        until_s = time.monotonic() + LONGEST_S
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < until_s, self.output
            time.sleep(0.05)

    def end(self) -> int:
        """Waits for the end of the search; returns its exit code."""
        try:
            return self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end within {LONGEST_S} s: {self.output}") from error
