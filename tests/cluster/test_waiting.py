"""The nodes that are awaited of each provider, and for how long. No Ray: a clock of the test's own."""

from pathlib import Path
from typing import Any

import pytest

from platform.cluster.providers import STATED, Autoscaler, Awaited, Stated
from platform.cluster.waiting import wait
from platform.common.errors import ClusterError, InputError
from platform.study.folder import default_folder, in_a_copy

HEAD = {"resources": {"CPU": 8}}


def config(max_workers: int = 4, **types: dict[str, Any]) -> dict[str, Any]:
    """Returns a cluster file as the autoscaler has it."""
    return {"max_workers": max_workers, "head_node_type": "head", "available_node_types": {"head": HEAD, **types}}


def gpu(number: int = 8, kind: str = "A100", **workers: int) -> dict[str, Any]:
    """Returns a node type with GPUs."""
    return {"resources": {"CPU": 96, "GPU": number, f"accelerator_type:{kind}": 1}, **workers}


@pytest.mark.parametrize(
    ("types", "num_devices", "num_gpus", "nodes"),
    [
        ({"gpu": gpu(min_workers=0, max_workers=2)}, None, 16, 2),  # nothing runs yet: all that the file allows
        ({"gpu": gpu(min_workers=1, max_workers=2)}, None, 16, 2),
        ({"gpu": gpu()}, None, 32, 4),  # as many as the cluster has workers
        ({"gpu": gpu()}, 12, 12, 2),
        ({"gpu": gpu(min_workers=1), "other": gpu(4, "V100")}, None, 32, 4),  # what is never started does not mix
    ],
)
def test_a_cluster_file_is_asked_for_all_it_allows_or_for_what_is_wanted(
    types: Any, num_devices: int | None, num_gpus: int, nodes: int
) -> None:
    target = Autoscaler(config(**types)).awaited(num_devices)
    assert target is not None
    assert (target.num_gpus, len(target.bundles)) == (num_gpus, nodes)
    assert target.bundles[0] == {"GPU": 8}


def test_a_cluster_file_without_gpus_is_not_waited_for() -> None:
    assert Autoscaler(config(cpu={"resources": {"CPU": 4}}, none=gpu(max_workers=0))).awaited(None) is None


def test_the_hosts_of_a_list_are_all_awaited_whatever_they_have() -> None:
    hosts = {"local.cluster.node": {"resources": {}, "node_config": {}, "min_workers": 3, "max_workers": 3}}
    file = {"provider": {"type": "local"}, "max_workers": 3, "available_node_types": hosts}
    target = Autoscaler({**file, "head_node_type": "local.cluster.node"}).awaited(16)
    assert target is not None
    assert (target.count, target.unit, target.bundles) == (4, "node", [])  # the head is one of them


@pytest.mark.parametrize(
    ("text", "num_devices", "count", "unit", "bundles"),
    [
        ("4", None, 4, "node", 0),
        ("4", 8, 4, "node", 0),  # how many GPUs a node has is not stated
        ("2x8", None, 16, "GPU", 2),
        ("2x8", 4, 4, "GPU", 1),
        ("2x8", 12, 12, "GPU", 2),
    ],
)
def test_a_stated_number_of_nodes_is_awaited(
    text: str, num_devices: int | None, count: int, unit: str, bundles: int
) -> None:
    target = Stated({STATED: text}).awaited(num_devices)
    assert target is not None
    assert (target.count, target.unit, len(target.bundles)) == (count, unit, bundles)


@pytest.mark.parametrize(
    ("environment", "description", "look"),
    [
        ({}, "that LAYOUT_SEARCH_NODES states", "ray start"),
        ({"SLURM_JOB_ID": "17"}, "of SLURM job 17", "scontrol show job 17"),
        ({"RAY_CLUSTER_NAME": "search-x"}, "of the RayCluster search-x", "kubectl get pods -l ray.io/cluster=search-x"),
    ],
)
def test_a_stated_node_is_named_by_who_starts_it(environment: dict[str, str], description: str, look: str) -> None:
    target = Stated({STATED: "2", **environment}).awaited(None)
    assert target is not None
    assert target.description == description and look in target.look


@pytest.mark.parametrize("text", ["two", "0", "2x", "2x0", "-1", "2 x 8"])
def test_a_number_of_nodes_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"LAYOUT_SEARCH_NODES must be nodes, as 4, .* got '{text}'"):
        Stated({STATED: text})


def test_unlike_gpus_and_too_many_are_refused() -> None:
    mixed = config(one=gpu(min_workers=1), two=gpu(8, "V100", min_workers=1))
    with pytest.raises(InputError, match=r"one and two .* unlike GPUs"):
        Autoscaler(mixed).awaited(None)
    with pytest.raises(InputError, match="64 devices are asked for, the cluster file allows 32"):
        Autoscaler(config(gpu=gpu())).awaited(64)
    with pytest.raises(InputError, match="64 devices are asked for, LAYOUT_SEARCH_NODES=2x8 states 16 GPUs"):
        Stated({STATED: "2x8"}).awaited(64)


@pytest.mark.parametrize("metadata", [None, [], {"usd_per_node_h": None}, {"usd_per_node_h": {"gpu": "22"}}])
def test_a_price_is_stated_where_the_file_has_one(metadata: object) -> None:
    file = {**config(gpu=gpu()), "provider": {"type": "aws"}}
    prices = {"metadata": {"usd_per_node_h": {"head": 0.4, "gpu": 22}}}
    target = Autoscaler({**file, **prices}).awaited(None)
    assert target is not None and target.description == "of type gpu, 8 GPUs and 22.00 USD an hour each"
    assert "the head bills 0.40 USD an hour until `ray down`" in Autoscaler({**file, **prices}).bill()
    target = Autoscaler({**file, "metadata": metadata}).awaited(None)
    assert target is not None and target.description == "of type gpu, 8 GPUs each"


def test_a_search_on_a_cloud_says_what_goes_on_billing() -> None:
    file = config(gpu=gpu()) | {"idle_timeout_minutes": 30}
    output = Autoscaler({**file, "provider": {"type": "aws"}}).bill()
    assert "ended after 30 min" in output and "the head bills until `ray down`" in output
    assert not Autoscaler({**file, "provider": {"type": "local"}}).bill()


class TestWait:
    target = Awaited(num_nodes=2, gpus_per_node=8, num_gpus=16, description="of type gpu", look="the log")

    def run(self, limit_s: float, arrivals: dict[float, int]) -> float:
        """Waits while the GPUs there follow `arrivals` (second: number); returns the second at which it ended."""
        now = [0.0]

        def live() -> int:
            return max(number for second, number in arrivals.items() if second <= now[0])

        def sleep(seconds: float) -> None:
            now[0] += seconds

        wait(self.target, limit_s, live=live, state=lambda: "1 launching", clock=lambda: now[0], sleep=sleep)
        return now[0]

    def test_it_says_what_it_waits_for_and_goes_on_when_all_are_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(1200, {0: 0, 100: 8, 200: 16}) == 200
        output = capsys.readouterr().err
        assert "Waiting for 2 nodes of type gpu: 0 of 16 GPUs are there (1 launching)" in output
        assert "8 of 16" in output and "16 GPUs came after 3 min 20 s" in output
        assert output.count("\n") == 5  # at 0, 60, 100 (another number), 160, and the end

    def test_it_is_the_cluster_s_fault_when_they_do_not_come(self) -> None:
        with pytest.raises(ClusterError, match=r"8 of 16 GPUs are there .* after 50 s, of 2 nodes of type gpu"):
            self.run(50, {0: 8})

    def test_nothing_is_said_where_they_are_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(50, {0: 16}) == 0
        assert capsys.readouterr().err == ""


def test_a_job_s_studies_are_kept_at_home_since_its_copy_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0a1b"
    copy.mkdir(parents=True)
    monkeypatch.setenv("HOME", "/home/ray")
    monkeypatch.chdir(copy)
    assert default_folder() == "/home/ray/studies"
    monkeypatch.chdir(tmp_path)
    assert default_folder() == "studies"


def test_a_job_s_copy_is_told_from_a_checkout() -> None:
    copy = Path("/tmp/ray/session_2026/runtime_resources/working_dir_files/_ray_pkg_0a1b")
    assert in_a_copy(copy) and in_a_copy(copy / "deeper")
    assert not in_a_copy(Path("/home/ray/layout-search"))
