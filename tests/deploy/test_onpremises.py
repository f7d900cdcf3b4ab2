"""A real `ray up` of the file for hosts of one's own, on two machines of namespaces with sshd: a search by `ray exec`,
one as a job, the studies brought back, and `ray down`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from platform.study.journal import Tail
from tests import needs
from tests.deploy.machines import Machine, machines
from tests.search.session import ROOT, write_space
from trainers.values.journal import Peak

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
    """A folder outside /tmp, which the machine has for itself."""
    with tempfile.TemporaryDirectory(prefix="hosts", dir="/var/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def both(folder: Path) -> Iterator[tuple[Machine, ...]]:
    """Two machines with sshd and an empty home each: the head, which is the user's machine too, and another."""
    needs.tools(["sshd", "rsync", "ssh-keygen"], "openssh-server rsync")
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    for key in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    with needs.namespaces(), machines(2, folder, SETUP.format(folder=folder, python=sys.base_prefix)) as made:
        yield made


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[bytes]]:
    """A process outside that `ray stop` would end if it saw it: it looks for the names of Ray's programs."""
    with subprocess.Popen(["bash", "-c", "exec -a gcs_server sleep 3600"]) as process:
        yield process
        process.kill()


class Cluster:
    """The file, changed where it says CHANGE, and the commands of a user inside the machine."""

    def __init__(self, machine: Machine, folder: Path, venv: Path = Path(sys.prefix)) -> None:
        self._machine, self._checkout = machine, folder / "checkout"
        shutil.copytree(ROOT, self._checkout, ignore=shutil.ignore_patterns(".*", "docs", "benchmarks", "studies"))
        shutil.copy(ROOT / ".gitignore", self._checkout)
        write_space(self._checkout / "tiny.py", micro_batches=(1,), num_workers=4)  # more than fit on one host
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
        """What `ray ...` prints, given in the checkout."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
        environment = {**clean, "HOME": "/root", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
        command = ["env", "-C", str(self._checkout), sys.executable, "-m", "ray.scripts.scripts", *arguments]
        return self._machine.run(*command, timeout_s=timeout_s, environment=environment, check=check)


def test_ray_up_brings_checkout_and_token_and_starts_no_ray_without_a_token(
    both: tuple[Machine, ...], folder: Path
) -> None:
    """With a stand-in for Ray on the head, which writes down what it is asked for."""
    machine = both[0]
    stand_in, asked = folder / "venv" / "bin", folder / "asked"
    stand_in.mkdir(parents=True)
    (stand_in / "activate").write_text(f"export PATH={stand_in}:$PATH\n")
    (stand_in / "ray").write_text(
        f'#!/bin/bash\necho "${{RAY_AUTH_MODE:-none}} ${{RAY_enable_autoscaler_v2:-}} $*" >> {asked}\n'
    )
    (stand_in / "ray").chmod(0o755)
    cluster, file = Cluster(machine, folder, folder / "venv"), str(folder / "cluster.yaml")
    assert "/root/.ray/auth_token" in cluster.ray("up", "--yes", "--no-config-cache", file, check=False)
    assert not asked.exists()

    cluster.ray("get-auth-token", "--generate")
    cluster.ray("up", "--yes", "--no-config-cache", file)
    stop, start = asked.read_text().splitlines()
    assert stop.startswith("none") and stop.endswith(" stop")
    assert start.startswith("token 0 start --head --port=6379 ")  # version 2 of the autoscaler starts no other host
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in start and "--dashboard-host=127.0.0.1" in start
    assert machine.run("stat", "--format=%a", "/root/.ray/auth_token").strip() == "600"
    assert "tiny.py" in cluster.ray("exec", file, "cd layout-search && . .venv/bin/activate && ls")


def test_from_ray_up_to_ray_down(both: tuple[Machine, ...], folder: Path, outside: subprocess.Popen[bytes]) -> None:
    # First of all: `ray stop` within a machine sees nothing outside of it.
    for each in both:
        assert str(outside.pid) not in each.run("ps", "-eo", "pid", "--no-headers").split()
        assert "gcs_server" not in each.run("ps", "-eo", "args")
    machine = both[0]
    cluster, file = Cluster(machine, folder), str(folder / "cluster.yaml")

    missing = cluster.ray("up", "--yes", "--no-config-cache", file, check=False)
    assert "auth_token" in missing, missing
    assert "raylet" not in machine.run("ps", "-eo", "args")  # without a token no Ray is started

    cluster.ray("get-auth-token", "--generate")
    cluster.ray("up", "--yes", "--no-config-cache", file)
    assert "raylet" in machine.run("ps", "-eo", "args")
    assert machine.run("stat", "--format=%a", "/root/.ray/auth_token").strip() == "600"
    options = "--max-trials=1 --repeats=0 --steps=3"
    enter = "cd layout-search && . .venv/bin/activate && RAY_AUTH_MODE=token CUDA_VISIBLE_DEVICES="
    said = cluster.ray("exec", file, f"{enter} python -m platform.search tiny.py --name one {options}", timeout_s=900)
    assert "Runs on the Ray cluster at" in said and "Fastest" in said, said
    assert "raylet" in both[1].run("ps", "-eo", "args")  # which starts later: the search has waited for it

    job = ["job", "submit", "--address=http://127.0.0.1:8265", "--working-dir=.", "--"]
    search = ["python", "-m", "platform.search", "tiny.py", "--name=two", *options.split()]
    assert "succeeded" in cluster.ray(*job, *search, timeout_s=900)

    cluster.ray("rsync-down", file, "/root/layout-search/studies/", f"{folder}/brought/")
    assert (folder / "brought" / "one" / "layout.json").exists()
    cluster.ray("rsync-down", file, "/root/studies/", f"{folder}/brought/")
    for study in ("one", "two"):
        assert _workers_hosts(folder / "brought" / study / "journal.jsonl") == {HEAD, OTHER}

    cluster.ray("down", "--yes", file)
    until_s = time.monotonic() + 300  # other hosts end their Ray a minute after they have lost the head
    while "raylet" in (left := "".join(each.run("ps", "-eo", "args") for each in both)):
        assert time.monotonic() < until_s, left
        time.sleep(0.5)
    assert outside.poll() is None, "a process outside was ended"


def _workers_hosts(journal: Path) -> set[str]:
    """Returns the addresses of the hosts on which a study's workers ran."""
    return {node for line in Tail(journal).read() if isinstance(line, Peak) for node in line.nodes}
