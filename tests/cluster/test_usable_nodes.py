"""Nodes that join a search: which ones trials may use, and what is said of the others. Ray's table is made up."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import trainers.host.node as host
from platform.cluster import usable_nodes
from platform.cluster.nodes import Node, handle_of
from platform.cluster.usable_nodes import UsableNodes

FACTS = {**host.facts(gpu=False), "device": "H200", "memory_gib": 141.0, "capability": "9.0"}
Entry = dict[str, Any]


def entry(number: int, *, cpus: float = 16.0, gpus: int = 0) -> Entry:
    """Returns a node as Ray's table has it."""
    resources = {"CPU": cpus, **({"GPU": float(gpus)} if gpus else {})}
    return {"NodeID": f"id{number}", "NodeManagerAddress": f"10.0.0.{number}", "Alive": True, "Resources": resources}


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[UsableNodes, list[Entry]]]:
    """Makes the nodes of a search that began on two such nodes, and the table, to which others may be added."""

    def make(*, gpus: int = 0, cpus: float = 16.0, host_gib: float = 0.0) -> tuple[UsableNodes, list[Entry]]:
        table = [entry(number, cpus=cpus, gpus=gpus) for number in (1, 2)]
        monkeypatch.setattr(ray, "nodes", lambda: table)
        monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
        monkeypatch.setattr(ray, "get", lambda references: [{**FACTS, "unix_s": time.time()} for _ in references])
        monkeypatch.setattr(usable_nodes, "facts_of", lambda ray, entry, on_gpu: SimpleNamespace())
        monkeypatch.setattr(usable_nodes, "LOOK_S", 0.0)
        nodes = [
            Node(id=row["NodeID"], address=row["NodeManagerAddress"], num_cpus=cpus, num_gpus=gpus, facts=FACTS)
            for row in table
        ]
        handle = handle_of(nodes, cpu_workers=8, driver_ip="10.0.0.1")
        return UsableNodes(handle, tmp_path, host_gib=host_gib), table

    return make


@pytest.mark.parametrize(
    ("began", "joins", "reason"),
    [
        ({}, {}, ""),
        ({}, {"cpus": 15.0}, "it has 15 cores, and needs 16 to run the same trials as the others"),
        ({}, {"gpus": 1}, "it has 1 GPU, the others none"),
        ({"gpus": 8, "cpus": 128.0}, {"gpus": 8, "cpus": 64.0}, ""),
        (
            {"gpus": 8, "cpus": 128.0},
            {"gpus": 8, "cpus": 32.0},
            "it has 32 cores, and needs 64 to run the same trials as the others",
        ),
        ({"gpus": 8}, {"gpus": 4}, "it has 4 GPUs, the others 8"),
        ({"host_gib": 1.0}, {}, ""),
        (
            {"host_gib": 1e6},
            {},
            f"it has {FACTS['host_gib']:.0f} GiB of host memory, and offload moments needs 1000000",
        ),
    ],
)
def test_a_node_that_joins_is_used_or_a_sentence_says_why_not(
    began: dict[str, Any],
    joins: dict[str, Any],
    reason: str,
    usable: Callable[..., tuple[UsableNodes, list[Entry]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes, table = usable(**began)
    assert list(nodes()) == ["id1", "id2"] and not nodes.has_refused()
    table.append(entry(3, **joins))
    for _ in range(3):
        nodes()
    assert list(nodes()) == ["id1", "id2", *([] if reason else ["id3"])] and nodes.has_refused() is bool(reason)
    (line,) = [text for text in "".join(capsys.readouterr()).splitlines() if text.strip()]
    expected = f"Node 10.0.0.3 joined and is left out: {reason}" if reason else "Node 10.0.0.3 joined: further trials"
    assert expected in line
    table.pop()
    nodes()
    assert not nodes.has_refused(), "it is gone"


def test_a_head_without_gpus_is_no_refused_node(
    usable: Callable[..., tuple[UsableNodes, list[Entry]]], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, table = usable(gpus=8)
    table.append(entry(3))
    assert list(nodes()) == ["id1", "id2"] and not nodes.has_refused()
    assert not "".join(capsys.readouterr())


def test_a_devices_share_of_host_memory_is_that_of_the_smallest_node() -> None:
    nodes = [
        Node(id=str(gib), address="", num_cpus=16, num_gpus=8, facts={**FACTS, "host_gib": gib})
        for gib in (2048.0, 1024.0)
    ]
    assert float(FACTS["host_gib"]) > 0
    assert handle_of(nodes, cpu_workers=1, driver_ip="").cluster.host_share_gib == 128.0
