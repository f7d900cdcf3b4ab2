"""A real `ray up` of the file for hosts of one's own, from a user's machine to two more, all of namespaces with sshd: a
search by `ray exec`, one as a job through the dashboard's tunnel, the studies brought back, and `ray down`.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from platform.study.journal import Tail
from tests import needs
from tests.deploy.machines import Machine, machines
from tests.whole_searches.session import ROOT, write_space
from trainers.records.journal import End, Peak

pytestmark = [pytest.mark.search, pytest.mark.heavy]
FILE = ROOT / "deploy" / "onpremises" / "cluster.yaml"
HEAD, OTHER = "10.77.0.1", "10.77.0.2"
SSHD = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
ListenAddress 0.0.0.0
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PidFile none
"""
ASK = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("refused")
"""
SETUP = """\
python={python}
home={folder}/home$NUMBER
mkdir -p /run/sshd $home
if [ {python} != "${{python#/root/}}" ]; then  # Python may lie in the home that is hidden below
    mkdir -p $home/"${{python#/root/}}"; mount --bind {python} $home/"${{python#/root/}}"
fi
mount --rbind $home /root
/usr/sbin/sshd -f {folder}/sshd_config
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that all machines see: it lies outside /tmp, since each machine has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="hosts", dir="/var/tmp", ignore_cleanup_errors=True) as created:
        yield Path(created)


@pytest.fixture
def all_three(folder: Path) -> Iterator[tuple[Machine, ...]]:
    """Yields the head, another host, and the user's machine, each with sshd and an empty home."""
    needs.tools(["sshd", "rsync", "ssh-keygen"], "openssh-server rsync")
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    for key in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    with needs.namespaces(), machines(3, folder, SETUP.format(folder=folder, python=sys.base_prefix)) as created:
        yield created


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process outside the machines that has the name of a program of Ray: `ray stop`, which looks for such
    names, would end the process if it saw it.
    """
    with subprocess.Popen(["bash", "-c", "exec -a gcs_server sleep 3600"]) as process:
        yield process
        process.kill()


class Cluster:
    """The file, changed where it says CHANGE, and the commands of a user inside the machine."""

    def __init__(self, machine: Machine, folder: Path, venv: Path = Path(sys.prefix)) -> None:
        self._machine, self.checkout = machine, folder / "checkout"
        shutil.copytree(ROOT, self.checkout, ignore=shutil.ignore_patterns(".*", "docs", "benchmarks", "studies"))
        shutil.copy(ROOT / ".gitignore", self.checkout)
        write_space(self.checkout / "tiny.py", micro_batches=(1,), num_workers=4)  # more than fit on one host
        config = yaml.safe_load(FILE.read_text())
        config["provider"] |= {"head_ip": HEAD, "worker_ips": [OTHER]}
        config["auth"] = {"ssh_user": "root", "ssh_private_key": str(folder / "key")}
        # The environment of this checkout in place of a new one, which takes minutes and a package index.
        *first, setup = config["setup_commands"]
        assert setup == "cd ~/layout-search && make setup"
        config["setup_commands"] = [*first, f"ln -sfn {venv} ~/layout-search/.venv"]
        self.file = folder / "cluster.yaml"
        self.file.write_text(yaml.safe_dump(config))

    def ray(self, *arguments: str, timeout_s: float = 300, check: bool = True) -> str:
        """Runs `ray ...` in the checkout and returns what it prints."""
        command, environment = self._command(*arguments)
        return self._machine.run(*command, timeout_s=timeout_s, environment=environment, check=check)

    @contextlib.contextmanager
    def dashboard(self) -> Generator[None]:
        """Runs `ray dashboard FILE` for the length of the context, which begins once the server behind the tunnel
        answers.
        """
        command, environment = self._command("dashboard", str(self.file))
        log = self.file.with_name("dashboard.log")
        process = self._machine.popen(command, log=log, environment=environment)
        try:
            until_s = time.monotonic() + 120
            while status(self._machine, "http://127.0.0.1:8265/") == "refused":
                assert process.poll() is None and time.monotonic() < until_s, log.read_text()
                time.sleep(0.5)
            yield
        finally:
            process.kill()

    def _command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
        environment = {**clean, "HOME": "/root", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
        command = ["env", "-C", str(self.checkout), sys.executable, "-m", "ray.scripts.scripts", *arguments]
        return command, environment


def status(machine: Machine, url: str) -> str:
    """Returns the HTTP status with which `url` answers a request of that machine without a token, or "refused"."""
    return machine.run(sys.executable, "-c", ASK, url).strip()


def listening(machine: Machine) -> set[tuple[str, int]]:
    """Returns the address and port of each socket that listens on the machine."""
    lines = machine.run("ss", "--no-header", "--listening", "--tcp", "--numeric").splitlines()
    addresses = (line.split()[3].rpartition(":") for line in lines)
    return {(address.strip("[]").removeprefix("::ffff:"), int(port)) for address, _, port in addresses}


def documented() -> set[int]:
    """Returns the ports that docs/clusters.md lists."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    rows = re.findall(r"^\| (.*?) \|", page.partition("## Ports")[2].partition("\n## ")[0], re.MULTILINE)
    ranges = [port_range for row in rows for port_range in re.findall(r"\b(\d{2,5})(?: to (\d{4,5}))?\b", row)]
    return {port for first, last in ranges for port in range(int(first), int(last or first) + 1)}


def test_ray_up_brings_checkout_and_token_and_starts_no_ray_without_a_token(
    all_three: tuple[Machine, ...], folder: Path
) -> None:
    """Runs `ray up` with a stand-in for Ray on the head, which records the arguments of each call."""
    head, _, mine = all_three
    stand_in, calls_file = folder / "venv" / "bin", folder / "asked"
    stand_in.mkdir(parents=True)
    (stand_in / "activate").write_text(f"export PATH={stand_in}:$PATH\n")
    (stand_in / "ray").write_text(
        f'#!/bin/bash\necho "${{RAY_AUTH_MODE:-none}} ${{RAY_enable_autoscaler_v2:-}} $*" >> {calls_file}\n'
    )
    (stand_in / "ray").chmod(0o755)
    cluster, file = Cluster(mine, folder, folder / "venv"), str(folder / "cluster.yaml")
    assert "/root/.ray/auth_token" in cluster.ray("up", "--yes", "--no-config-cache", file, check=False)
    assert not calls_file.exists()

    cluster.ray("get-auth-token", "--generate")
    cluster.ray("up", "--yes", "--no-config-cache", file)
    stop, start = calls_file.read_text().splitlines()
    assert stop.startswith("none") and stop.endswith(" stop")
    assert start.startswith("token 0 start --head --port=6379 ")  # version 2 of the autoscaler starts no other host
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in start and "--dashboard-host=127.0.0.1" in start
    assert head.run("stat", "--format=%a", "/root/.ray/auth_token").strip() == "600"
    assert "tiny.py" in cluster.ray("exec", file, "cd layout-search && . .venv/bin/activate && ls")
    server = [sys.executable, "-m", "http.server", "8265", "--bind=127.0.0.1", f"--directory={folder}"]
    page = head.popen(server, log=folder / "page.log")
    with cluster.dashboard():
        assert status(mine, "http://127.0.0.1:8265/cluster.yaml") == "200"
    page.kill()


def test_from_ray_up_to_ray_down(
    all_three: tuple[Machine, ...], folder: Path, outside: subprocess.Popen[bytes]
) -> None:
    # First of all: `ray stop` within a machine sees nothing outside of it.
    for machine in all_three:
        assert str(outside.pid) not in machine.run("ps", "-eo", "pid", "--no-headers").split()
        assert "gcs_server" not in machine.run("ps", "-eo", "args")
    head, other, mine = all_three
    cluster, file = Cluster(mine, folder), str(folder / "cluster.yaml")

    missing = cluster.ray("up", "--yes", "--no-config-cache", file, check=False)
    assert "auth_token" in missing, missing
    assert "raylet" not in head.run("ps", "-eo", "args")  # without a token no Ray is started

    cluster.ray("get-auth-token", "--generate")
    cluster.ray("up", "--yes", "--no-config-cache", file)
    assert "raylet" in head.run("ps", "-eo", "args")
    assert head.run("stat", "--format=%a", "/root/.ray/auth_token").strip() == "600"
    options = "--max-trials=1 --repeats=0 --steps=3"
    enter = "cd layout-search && . .venv/bin/activate && RAY_AUTH_MODE=token CUDA_VISIBLE_DEVICES="
    output = cluster.ray("exec", file, f"{enter} python -m platform.search tiny.py --name one {options}", timeout_s=900)
    assert "Runs on the Ray cluster at" in output and "Fastest" in output, output
    assert "raylet" in other.run("ps", "-eo", "args")  # which starts later: the search has waited for it

    search = ["python", "-m", "platform.search", "tiny.py", "--name=two", *options.split()]
    with cluster.dashboard():
        assert status(mine, "http://127.0.0.1:8265/api/jobs/") == "401"
        job = ["job", "submit", "--address=http://127.0.0.1:8265", "--working-dir=.", "--no-wait", "--"]
        assert "submitted successfully" in cluster.ray(*job, *search)
    sockets = _of_the_search(folder / "home1" / "studies" / "two" / "journal.jsonl", head, other)
    _documented_ports_alone(sockets, mine)

    cluster.ray("rsync-down", file, "~/layout-search/studies/", "studies/")
    assert (cluster.checkout / "studies" / "one" / "layout.json").exists()
    cluster.ray("rsync-down", file, "~/studies/", "studies/")
    for study in ("one", "two"):
        assert _workers_hosts(cluster.checkout / "studies" / study / "journal.jsonl") == {HEAD, OTHER}

    cluster.ray("down", "--yes", file)
    until_s = time.monotonic() + 300  # other hosts end their Ray a minute after they have lost the head
    while "raylet" in (processes := "".join(machine.run("ps", "-eo", "args") for machine in all_three)):
        assert time.monotonic() < until_s, processes
        time.sleep(0.5)
    assert outside.poll() is None, "a process outside was ended"


def _of_the_search(journal: Path, *hosts: Machine) -> list[set[tuple[str, int]]]:
    """Returns the sockets that listened on each host until the search in `journal` had ended with code 0."""
    sockets_by_host: list[set[tuple[str, int]]] = [set() for _ in hosts]
    until_s = time.monotonic() + 900
    while not (ends := [line for line in Tail(journal).read() if isinstance(line, End)] if journal.exists() else []):
        assert time.monotonic() < until_s
        for sockets, host in zip(sockets_by_host, hosts, strict=True):
            sockets |= listening(host)
        time.sleep(0.5)
    assert [end.exit_code for end in ends] == [0]
    return sockets_by_host


def _documented_ports_alone(sockets: Sequence[set[tuple[str, int]]], mine: Machine) -> None:
    """Checks that each port that other hosts reach is listed on the page or lies in the range from which the system
    chooses freely.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    reached = [{port for address, port in of_host if not address.startswith("127.")} for of_host in sockets]
    fixed = [{port for port in ports if not low <= port <= high} for ports in reached]
    assert set().union(*fixed) <= documented(), fixed
    assert {22, 6379, 8076} <= fixed[0] and {22, 8076} <= fixed[1]
    assert {6379, 10001}.isdisjoint(fixed[1])
    assert [{address for address, port in of_host if port == 8265} for of_host in sockets] == [{"127.0.0.1"}, set()]
    assert status(mine, f"http://{HEAD}:52365/api/local_raylet_healthz") == "200"
    assert status(mine, f"http://{HEAD}:52365/api/job_agent/jobs/x/logs") == "401"


def _workers_hosts(journal: Path) -> set[str]:
    """Returns the addresses of the hosts on which a study's workers ran."""
    return {node for line in Tail(journal).read() if isinstance(line, Peak) for node in line.nodes}
