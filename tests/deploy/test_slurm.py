"""The batch file under a real SLURM of two machines: the same sbatch line begins a study, is interrupted at its time
limit, and goes on. Debian's slurmctld, slurmd and munged.
"""

import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform.study.journal import Tail
from tests import needs
from tests.deploy.machines import Machine, machines
from tests.whole_searches.session import ROOT, write_space
from trainers.records.journal import End, Line, Measured

pytestmark = [pytest.mark.search, pytest.mark.heavy]
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch")
LONGEST_S = 900.0
CONFIG = """\
ClusterName=test
SlurmctldHost=node1(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=node1 NodeAddr=10.77.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
NodeName=node2 NodeAddr=10.77.0.2 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=test Nodes=node1,node2 Default=YES MaxTime=60 State=UP
"""
SETUP = """\
mount -t tmpfs tmpfs /var/spool; mkdir -p /var/log/munge /etc/slurm
mkdir -p /run/munge /var/spool/slurmd /var/spool/slurmctld; chmod 755 /run /run/munge
mount --bind {folder}/slurm /etc/slurm
# slurmd wants these controllers mounted, whatever plugins it uses.
mount -t tmpfs tmpfs /sys/fs/cgroup
for each in freezer memory cpuset devices; do
    mkdir -p /sys/fs/cgroup/$each; mount -t cgroup -o $each cgroup /sys/fs/cgroup/$each
done
munged --force --key-file={folder}/munge.key --socket=/run/munge/munge.socket.2 --log-file={folder}/munged$NUMBER.log \\
    --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed
sleep 1
[ $NUMBER != 1 ] || slurmctld -c
slurmd
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that both machines see: it lies outside /tmp, since each has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="slurm", dir="/var/tmp", ignore_cleanup_errors=True) as created:
        yield Path(created)


@pytest.fixture
def slurm(folder: Path) -> Iterator[tuple[Machine, ...]]:
    """Yields two machines with SLURM, both idle."""
    needs.tools(TOOLS, "slurm-wlm munge")
    (folder / "slurm").mkdir()
    (folder / "slurm" / "slurm.conf").write_text(CONFIG.format(folder=folder))
    (folder / "slurm" / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    with needs.namespaces(), machines(2, folder, SETUP.format(folder=folder)) as both:
        until_s = time.monotonic() + 60
        while "2 idle" not in (output := both[0].run("sinfo", "--noheader", "--format=%D %t", check=False)):
            assert time.monotonic() < until_s, output
            time.sleep(0.5)
        yield both


STAND_IN_FOR_RAY = """\
#!/bin/bash
# The head runs the command, as `ray symmetric-run` does; the others wait for its end.
echo "$(hostname) has token ${RAY_AUTH_TOKEN:0:8} for ${RAY_ADDRESS}: $*"
while [ "$1" != -- ]; do shift; done; shift
if [ "$SLURM_NODEID" = 0 ]; then "$@"; code=$?; touch "$STUDIES/over"; exit $code; fi
while [ ! -e "$STUDIES/over" ]; do sleep 0.5; done
"""
STAND_IN_FOR_PYTHON = """\
#!/bin/bash
echo "search: $* of LAYOUT_SEARCH_NODES=$LAYOUT_SEARCH_NODES"
trap 'sleep 5; echo "search was interrupted"; exit 130' TERM
for _ in {1..600}; do sleep 1; done
"""


class Submitted:
    """The batch file, given to sbatch by the same line as often as needed."""

    def __init__(self, head: Machine, folder: Path, *, minutes: int, notice_s: int, venv: Path | None = None,
                 training: list[str] | None = None) -> None:  # fmt: skip
        self._head, self._folder = head, folder
        self.journal = folder / "studies" / "two" / "journal.jsonl"
        axes = {"engine": ("ddp",), "grad_sync": ("last", "every")}
        space = write_space(folder / "two.py", micro_batches=(1, 2, 4), global_batch=8, axes=axes)
        self._line = ["sbatch", "--parsable", "--gres=none", f"--time={minutes}", f"--signal=B:TERM@{notice_s}"]
        self._line += [f"--output={folder}/%j.out"]
        search = [str(space), "--searcher=sweep", "--steps=4000", "--repeats=0"]
        self._line += ["deploy/slurm/search.sbatch", *search] if training is None else ["deploy/slurm/train.sbatch"]
        self._line += training or []
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
        self._environment = {
            **variables,
            "STUDIES": str(folder / "studies"),
            "NAME": "two",
            "VENV": str(venv or ROOT / ".venv"),
            "NOTICE": str(notice_s),
        }

    def run(self) -> tuple[str, str]:
        """Submits the job and waits for its end; returns the end that SLURM reports and what the job printed."""
        return self.ended(self.submit())

    def submit(self) -> str:
        """Submits the job and returns its number."""
        return self._head.run("env", "-C", str(ROOT), *self._line, environment=self._environment).strip()

    def output(self, job: str) -> str:
        """Returns what the job has printed so far."""
        path = self._folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def ended(self, job: str) -> tuple[str, str]:
        """Waits for the job's end; returns the end that SLURM reports and what the job printed."""
        until_s = time.monotonic() + LONGEST_S
        while True:
            shown = self._head.run("scontrol", "show", "job", job)
            if (state := re.search(r"JobState=(\w+)", shown)) and state[1] not in ("PENDING", "RUNNING", "COMPLETING"):
                break
            assert time.monotonic() < until_s, shown
            time.sleep(1)
        code = re.search(r"ExitCode=(\d+):", shown)
        return f"{state[1]} {code[1] if code else '?'}", self.output(job) or shown

    def of(self, kind: type[Line]) -> list[Line]:
        """Returns the journal's lines of one kind."""
        return [line for line in Tail(self.journal).read() if isinstance(line, kind)]


def test_before_the_time_limit_the_search_alone_gets_the_signal(slurm: tuple[Machine, ...], folder: Path) -> None:
    """Submits the batch file under SLURM's own time limit, with stand-ins for Ray and the search."""
    stand_ins = folder / "venv" / "bin"
    stand_ins.mkdir(parents=True)
    (stand_ins / "activate").write_text(f"export PATH={stand_ins}:$PATH\n")
    for name, text in (("ray", STAND_IN_FOR_RAY), ("python", STAND_IN_FOR_PYTHON)):
        (stand_ins / name).write_text(text)
        (stand_ins / name).chmod(0o755)
    ended, output = Submitted(slurm[0], folder, minutes=2, notice_s=60, venv=folder / "venv").run()
    assert ended == "FAILED 130", output  # the search's own code, and before SLURM's limit
    assert "The job's time is nearly over" in output and "search was interrupted" in output
    assert f"python -m platform.report two --studies {folder}/studies makes its runs again" in output
    tokens = re.findall(
        r"^(node\d) has token (\w{8}) for 10\.77\.0\.1:6379: symmetric-run .*--min-nodes 2 ", output, re.M
    )
    assert sorted(node for node, _ in tokens) == ["node1", "node2"]
    assert len({token for _, token in tokens}) == 1
    assert "--name two --auto-resume" in output and "of LAYOUT_SEARCH_NODES=2" in output
    for machine in slurm:
        assert "search-" not in machine.run("ls", "/tmp")

    # A training, which is told the time that it has.
    (folder / "studies" / "over").unlink()
    arguments = ["two", "--tokens=1e9"]
    submitted = Submitted(slurm[0], folder, minutes=2, notice_s=70, venv=folder / "venv", training=arguments)
    ended, output = submitted.run()
    assert ended == "FAILED 130" and "or it is preempted: the training ends" in output, output
    assert f"-m platform.train --studies {folder}/studies --grace 10 two --tokens=1e9" in output
    assert "search was interrupted" in output  # what stands in for Python says so

    # The same by hand.
    (folder / "studies" / "over").unlink()
    submitted = Submitted(slurm[0], folder, minutes=10, notice_s=60, venv=folder / "venv")
    job = submitted.submit()
    until_s = time.monotonic() + 60
    while "search: " not in submitted.output(job):
        assert time.monotonic() < until_s, submitted.output(job)
        time.sleep(0.2)
    assert slurm[1].run("stat", "--format=%a", f"/tmp/search-{job}").strip() == "700"
    slurm[0].run("scancel", "--batch", "--signal=TERM", job)
    ended, output = submitted.ended(job)
    assert ended == "FAILED 130" and "search was interrupted" in output, output


def test_the_same_line_goes_on_after_the_time_limit_and_nothing_runs_twice(
    slurm: tuple[Machine, ...], folder: Path
) -> None:
    submitted = Submitted(slurm[0], folder, minutes=5, notice_s=150)
    ended, output = submitted.run()
    assert ended == "FAILED 130", output  # before the limit, by the search's own exit code
    assert "the search ends. The same sbatch line goes on with it" in output
    assert "Interrupted. What was measured is kept" in output
    (end,) = submitted.of(End)
    assert isinstance(end, End) and end.exit_code == 130
    before = submitted.of(Measured)
    for _ in range(4):
        ended, output = submitted.run()
        if ended == "COMPLETED 0":
            break
    assert ended == "COMPLETED 0", output
    measured = submitted.of(Measured)
    assert measured[: len(before)] == before
    points = [line.measurement.id for line in measured if isinstance(line, Measured)]
    assert len(points) == len(set(points))
    # Nothing of a job is left on either node.
    for machine in slurm:
        assert "ray::" not in machine.run("ps", "-eo", "args")
