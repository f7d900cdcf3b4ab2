"""A user's command on two hosts with a network of their own: torchrun meets over it, and a failure names its node. The
page's example there is searched to a confirmed answer.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import RayHosts, hosts
from platform.common.errors import NOT_RESOLVED
from platform.study.result.result import StudyResult
from platform.study.study import read
from tests import needs
from tests.faults.searching import Searching
from tests.whole_searches.head import short_folder
from tests.whole_searches.own_page import whole_example
from tests.whole_searches.session import ROOT
from trainers.commands import step_lines
from trainers.records.journal import Measured
from trainers.records.measurement import Outcome

pytestmark = [pytest.mark.search, pytest.mark.heavy]
SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
batch, accum, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if mode == "broken" and rank == 1:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
for number in range(10**6):
    time.sleep(0.05)
    loss = torch.ones(())
    dist.all_reduce(loss)
    if rank == 0:
        line = {"tokens": batch * accum * world * 16, "loss": float(loss)}
        with open(os.environ["LAYOUT_SEARCH_STEPS"], "a") as file:
            file.write(json.dumps(line) + "\\n")
"""


@pytest.fixture
def cluster() -> Iterator[RayHosts]:
    """Yields a cluster of two hosts."""
    with needs.namespaces(), short_folder() as folder, hosts(2) as created:
        up = RayHosts(created, folder)
        up.start(0)
        up.start(1)
        yield up


def _training(folder: Path, *launcher: str) -> tuple[str, ...]:
    (folder / "train.py").write_text(SCRIPT)
    script = (str(folder / "train.py"), "{micro_batch=2}", "{grad_accum}", "{mode=plain,broken}")
    return (str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "{gpus}", *launcher, *script)


def test_a_command_runs_on_two_hosts_and_a_failure_names_its_node(cluster: RayHosts) -> None:
    launcher = (
        "--nnodes",
        "{nodes}",
        "--node-rank",
        "{node_rank}",
        "--master-addr",
        "{head}",
        "--master-port",
        "{port}",
    )
    options = ("--gpus=2", "--tokens-per-step=256", "--searcher=sweep", "--repeats=0", "--steps=5")
    with Searching(cluster, *options, name="two", training=_training(cluster.folder, *launcher)) as search:
        assert search.end() in (0, NOT_RESOLVED), search.output
    measured = {m.measurement.layout.label: m.measurement for m in search.of(Measured)}
    plain, broken = measured["mode=plain"], measured["mode=broken"]
    assert plain.outcome in (Outcome.OK, Outcome.SLOW) and set(plain.losses) == {2.0}, "of both ranks"
    assert plain.conditions is not None and plain.conditions.num_nodes == 2
    where = "|".join(re.escape(host.address) for host in cluster.hosts)  # Ray says which of them is first
    assert broken.outcome is Outcome.OOM and re.search(rf"\(on node 1, (?:{where})\)", broken.reason)
    assert "RuntimeError: CUDA out of memory" in broken.reason
    for host in cluster.hosts:
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.pids()]
        assert not [command for command in commands if b"train.py" in command], "left behind"


def test_the_page_s_example_is_searched_on_two_hosts(cluster: RayHosts) -> None:
    """Checks the commands of docs/your-training.md as they stand there: a Trainer that has the callback and knows
    nothing else of this project, one worker on each host.
    """
    project = cluster.folder / "my-project"
    project.mkdir()
    shutil.copy(ROOT / "tests" / "whole_searches" / "hf_training.py", project / "train.py")
    shutil.copy(step_lines.__file__, project)
    _, script = whole_example()
    environment = {
        **cluster.environment,
        "RAY_ADDRESS": cluster.address,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(cluster.folder / "cache"),
    }
    log = cluster.folder / "log"
    search = cluster.hosts[0].popen(["env", "-C", str(project), "bash", "-c", script], environment, log)
    assert search.wait(timeout=1800) in (0, NOT_RESOLVED), log.read_text()[-5000:]
    history, _ = read(project / "studies" / "train-1")
    measured = history.measurements
    assert {each.layout.label for each in measured} == {"ckpt=true", "ckpt=false"}
    assert {each.outcome for each in measured} <= {Outcome.OK, Outcome.SLOW}
    assert all(each.conditions is not None and each.conditions.num_nodes == 2 for each in measured)
    assert len({round(each.losses[0], 4) for each in measured}) == 1, "the same data and weights at every point"
    (result,) = StudyResult.of(history).of_study
    assert result.leader is not None and len(result.leader.runs) >= 2
    line = "torchrun --nnodes 2 --node-rank NODE_RANK --master-addr HEAD --master-port PORT --nproc-per-node 1 train.py"
    assert line in " ".join(log.read_text().split())
    for host in cluster.hosts:
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.pids()]
        assert not [command for command in commands if b"train.py" in command], "left behind"
