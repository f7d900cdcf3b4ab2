# pyright: reportPrivateUsage=false
"""The rendezvous of a trial's ranks, by the hosts that they are on; `tests/faults/test_driver.py` lists a real trial's
sockets.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from trainers.distributed import rendezvous as groups

Started = tuple[list[dict[str, Any]], list[str]]


class Workers:
    """Stands in for Train's worker group: what is executed runs here, and ranks' process groups are recorded."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes
        self.groups_made: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.nodes)

    def execute(self, run: Callable[..., Any]) -> list[Any]:
        return self.nodes if run is groups._node else [run() for _ in self.nodes]

    def execute_single(self, rank: int, run: Callable[..., Any], *arguments: Any) -> Any:
        return run(*arguments)

    def execute_single_async(self, rank: int, run: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self.groups_made.append(options) if options else run(*arguments)

    def execute_async(self, run: Callable[..., Any], **options: Any) -> list[Any]:
        return []


@pytest.fixture
def over_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the worker groups for which Ray's own backend was used."""
    used: list[Any] = []
    monkeypatch.setattr(groups._TorchBackend, "on_start", lambda self, workers, config: used.append(workers))
    monkeypatch.setattr(groups, "_set_torch_distributed_env_vars", lambda: None)
    monkeypatch.setattr(ray, "get", lambda refs, timeout=None: refs)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "eth7")
    return used


def test_ranks_of_one_host_meet_in_a_folder_of_this_user_s_and_stay_on_loopback(
    tmp_path: Path, over_network: list[Any]
) -> None:
    config = groups.process_group(on_cuda=False, timeout_s=9, folder=str(tmp_path))
    backend, workers = config.backend_cls(), Workers(["n1", "n1"])
    backend.on_start(workers, config)  # pyright: ignore[reportArgumentType]
    assert not over_network
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [
        (group["world_rank"], group["init_method"], group["backend"], group["timeout_s"])
        for group in workers.groups_made
    ] == [
        (0, f"file://{folder}/store", "gloo", 9),
        (1, f"file://{folder}/store", "gloo", 9),
    ]
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo" and os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
    backend.on_shutdown(workers, config)  # pyright: ignore[reportArgumentType]
    assert not folder.exists()


def test_trials_that_share_a_host_meet_each_in_a_folder_of_its_own(tmp_path: Path, over_network: list[Any]) -> None:
    config = groups.process_group(on_cuda=False, timeout_s=9, folder=str(tmp_path))
    lanes = [Workers(["n1", "n1"]) for _ in range(3)]
    for workers in lanes:  # of Ray's backend there is one a process, and each lane has a process
        config.backend_cls().on_start(workers, config)  # pyright: ignore[reportArgumentType]
    places = [{group["init_method"] for group in workers.groups_made} for workers in lanes]
    assert all(len(place) == 1 for place in places) and len(set.union(*places)) == 3 and not over_network


def test_a_host_without_the_search_s_folder_uses_its_temporary_one(tmp_path: Path) -> None:
    group_folder = Path(groups._make_folder(str(tmp_path / "elsewhere")))
    assert group_folder.is_dir() and group_folder.parent != tmp_path
    groups._remove_folder(str(group_folder))
    assert not group_folder.exists()


def test_ranks_of_several_hosts_meet_over_the_network(over_network: list[Any]) -> None:
    config = groups.process_group(on_cuda=True, timeout_s=9)
    workers = Workers(["n1", "n2"])
    config.backend_cls().on_start(workers, config)  # pyright: ignore[reportArgumentType]
    assert over_network == [workers] and os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
