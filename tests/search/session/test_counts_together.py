"""`--gpus 1,2` where the cluster holds trials of both: which searches run at the same time, and their journals."""

import contextlib
import dataclasses
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from platform.cluster.nodes import ClusterHandle, Node
from platform.common.signals import INTERRUPTED
from platform.search.session import session
from platform.search.session.several import parts_of
from platform.search.setup.options import SearchOptions
from platform.study.study import Study, read
from tests.search.loop.backend import CLUSTER
from tests.search.loop.played import Played


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(id=f"id{n}", address=f"10.0.0.{n}", num_cpus=9, num_gpus=0, facts={}) for n in range(count))


@pytest.fixture
def on_two_nodes(played: Played, monkeypatch: pytest.MonkeyPatch) -> Played:
    handle = ClusterHandle(cluster=CLUSTER, cpus_per_worker=1.0, driver_ip="127.0.0.1", nodes=nodes(2))

    @contextlib.contextmanager
    def this_cluster(*_: object, **__: object) -> Generator[ClusterHandle]:
        yield handle

    class AllNodes:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __call__(self) -> Mapping[str, str]:
            return {node.id: node.address for node in handle.nodes}

        def has_refused(self) -> bool:
            return False

    monkeypatch.setattr(session, "connected", this_cluster)
    monkeypatch.setattr(session, "UsableNodes", AllNodes)
    monkeypatch.setattr(session.preflight, "check", lambda *_: None)
    monkeypatch.setattr(session.preflight, "remarks", lambda *_: ())
    return played


def test_both_run_at_the_same_time_and_each_has_its_journal_and_winner(
    on_two_nodes: Played, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_two_nodes.search(pair, "--name", "s", "--gpus", "1,2", "--searcher", "sweep", "--max-trials", "9") == 0
    assert on_two_nodes.ran != sorted(on_two_nodes.ran), "the numbers take turns"
    output = capsys.readouterr()
    rows = json.loads(output.out)["scaling"]
    assert [(row["gpus"], row["tokens_per_s"]) for row in rows] == [(1, 1000.0), (2, 1600.0)]
    first, second = (read(on_two_nodes.studies / f"s-{count}gpu")[0] for count in (1, 2))
    assert len(first.measurements) == len(second.measurements) == 3 and first.sessions == second.sessions == 1
    beside = {other for start in second.trials if (end := second.trial_end(start.trial_id)) for other in end.beside}
    assert beside & {f"s-1gpu:{start.trial_id}" for start in first.trials}
    assert "[1 device] " in output.err and "[2 devices] " in output.err


def test_an_interrupted_one_goes_on_with_what_is_missing_of_both(on_two_nodes: Played, pair: str) -> None:
    on_two_nodes.cut = 2
    argv = (pair, "--name", "s", "--gpus", "1,2", "--searcher", "sweep")
    assert on_two_nodes.search(*argv, "--max-trials", "9") == INTERRUPTED
    on_two_nodes.cut = None
    assert on_two_nodes.search("--resume", "s") == 0
    for count in (1, 2):
        history = read(on_two_nodes.studies / f"s-{count}gpu")[0]
        assert history.end is not None and history.end.exit_code == 0
        measured = sorted((m.layout.checkpointing, m.repeat) for m in history.measurements)
        assert measured == [("full", 0), ("none", 0), ("none", 1)] and len(history.gates) == 2


def test_none_begins_where_one_of_them_cannot(
    on_two_nodes: Played, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on_two_nodes.cut = 2
    argv = (pair, "--name", "s", "--gpus", "1,2", "--searcher", "sweep")
    assert on_two_nodes.search(*argv, "--max-trials", "9") == INTERRUPTED
    on_two_nodes.cut = None
    with Study.resume(on_two_nodes.studies, "s-2gpu")[0]:
        assert on_two_nodes.search("--resume", "s") == 2
    assert "s-2gpu" in capsys.readouterr().err
    history = read(on_two_nodes.studies / "s-1gpu")[0]
    assert history.sessions == 1 and history.end is not None, "no line is of a session that ran nothing"


@pytest.mark.parametrize(
    ("num_nodes", "mode", "time_s", "parts"),
    [
        (1, "auto", None, [(1,), (2,), (16,)]),
        (1, "on", None, [(1, 2, 16)]),
        (1, "on", 600.0, [(1,), (2,), (16,)]),
        (2, "auto", None, [(1, 2, 16)]),
        (2, "off", None, [(1,), (2,), (16,)]),
        (2, "auto", 600.0, [(1, 2), (16,)]),
        (4, "auto", 600.0, [(1, 2, 16)]),
    ],
)
def test_under_a_limit_of_time_as_many_share_the_cluster_as_have_final_runs_at_a_time(
    num_nodes: int, mode: Any, time_s: float | None, parts: list[tuple[int, ...]]
) -> None:
    cluster = dataclasses.replace(CLUSTER, device_kind="cuda", num_nodes=num_nodes, devices_per_node=8)
    handle = ClusterHandle(cluster=cluster, cpus_per_worker=1.0, driver_ip="", nodes=nodes(num_nodes))
    setups: dict[int, Any] = {
        count: SimpleNamespace(cluster=SimpleNamespace(num_devices=count), space=SimpleNamespace(time_budget_s=None))
        for count in (1, 2, 16)
    }
    options = SearchOptions(studies=Path("studies"), side_by_side=mode, time_budget_s=time_s)
    assert parts_of(cast(Any, setups), handle, options) == parts
