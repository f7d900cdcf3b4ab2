"""A command's trial: its first run, which tells the length of its sequences or why it tells nothing, and its place."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray import cluster_utils

from search_spaces.command import space_of_command
from trainers.records.job import Job
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json
from trainers.trial import command_trial
from trainers.trial.command_nodes import CommandNodes, on_nodes
from trainers.trial.command_trial import first_step


def _job(folder: Path) -> Job:
    command = (sys.executable, "train.py", "{micro_batch=4}", "{grad_accum}")
    space = space_of_command(command, folder=folder, tokens_per_step=4096, seq_len=1)
    (candidate, *_), _ = space.candidates(2)
    return Job(
        trial_id="first",
        recorder="",
        recipe=candidate.recipe,
        layout=candidate.layout,
        rungs=(BatchPoint(micro_batch=4, grad_accum=1),),
        cluster=Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0, devices_per_node=2),
        cpus_per_worker=0.5,
        first_step_s=300.0,
    )


def _first_step(folder: Path, script: str) -> dict[str, Any]:
    (folder / "train.py").write_text(script)
    return first_step(to_json(_job(folder)))


def test_the_recorder_is_told_the_addresses_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks one node and two by the table that Ray would show, and a job of no rungs: there is no Ray here."""
    calls: list[tuple[Any, ...]] = []
    (tmp_path / "train.py").touch()
    job = to_json(dataclasses.replace(_job(tmp_path), rungs=()))
    rows = [{"NodeID": f"id{number}", "NodeManagerAddress": f"10.0.0.{number}"} for number in (1, 2, 3)]
    monkeypatch.setattr(ray, "nodes", lambda: rows)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "id3"))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.3")
    monkeypatch.setattr(ray.util, "placement_group_table", lambda _: {"bundles_to_node_id": {0: "id2", 1: "id1"}})
    monkeypatch.setattr(CommandNodes, "starter", lambda *_: None)
    monkeypatch.setattr(command_trial.recorders, "find", lambda _: None)
    monkeypatch.setattr(command_trial.recorders, "call", lambda _, *call: calls.append(call))
    nodes = CommandNodes(group=cast(Any, None), count=2, num_cpus=1.0, num_gpus=0)
    assert command_trial.climb(job) == command_trial.climb(job, nodes) == ("done", "")
    assert [call for call in calls if call[0] == "place"] == [
        ("place", "first", ["id3"], ["10.0.0.3"]),
        ("place", "first", ["id2", "id1"], ["10.0.0.2", "10.0.0.1"]),
    ]


def test_the_first_step_ends_the_run_and_tells_its_tokens(tmp_path: Path) -> None:
    script = (
        "import json, os, sys, time\n"
        "line = {'tokens': 2 * 64 * int(sys.argv[1]) * int(sys.argv[2])}\n"
        "open(os.environ['LAYOUT_SEARCH_STEPS'], 'w').write(json.dumps(line) + '\\n')\n"
        "time.sleep(600)\n"
    )
    assert _first_step(tmp_path, script) == {"tokens": 512, "outcome": "ok", "reason": "", "output": ""}


def test_a_script_that_fails_has_its_last_lines(tmp_path: Path) -> None:
    answer = _first_step(
        tmp_path, "for number in range(30):\n    print('line', number)\nraise ImportError('no data')\n"
    )
    assert (answer["tokens"], answer["outcome"]) == (None, "failed")
    assert answer["reason"] == "it ended with exit code 1 before its first step: ImportError: no data"
    lines = answer["output"].splitlines()
    assert len(lines) == 20 and lines[-1] == "ImportError: no data" and "line 29" in lines


@pytest.mark.ray
def test_a_job_of_two_nodes_has_a_place_on_each(tmp_path: Path) -> None:
    """Checks two of Ray's nodes on this machine: of any nodes, and of those that the job names."""
    (tmp_path / "train.py").touch()
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        ids = [node["NodeID"] for node in ray.nodes()]
        job = _job(tmp_path)
        two = dataclasses.replace(job.cluster, num_nodes=2, devices_per_node=1)
        for named in ((), tuple(ids)):
            job = dataclasses.replace(job, cluster=two, nodes=named)
            assert set(on_nodes(lambda _, nodes: nodes.addresses(), job)) == set(ids), named
    finally:
        ray.shutdown()
        cluster.shutdown()
