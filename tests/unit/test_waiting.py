"""What GPU nodes a cluster file promises, and how long they are waited for. No Ray: a clock of the test's own."""

from pathlib import Path
from typing import Any

import pytest

from platform.cluster.waiting import Awaited, awaited, gpu_types, wait
from platform.common.errors import ClusterError, InputError
from platform.study.folder import default_folder, in_a_copy

HEAD = {"resources": {"CPU": 8}}


def config(most: int = 4, **types: dict[str, Any]) -> dict[str, Any]:
    """A cluster file as the autoscaler has it."""
    return {"max_workers": most, "head_node_type": "head", "available_node_types": {"head": HEAD, **types}}


def gpu(number: int = 8, kind: str = "A100", **workers: int) -> dict[str, Any]:
    """A node type with GPUs."""
    return {"resources": {"CPU": 96, "GPU": number, f"accelerator_type:{kind}": 1}, **workers}


@pytest.mark.parametrize(
    ("types", "wanted", "num_gpus", "nodes"),
    [
        ({"gpu": gpu(min_workers=2)}, None, 16, 2),
        ({"gpu": gpu()}, None, 8, 1),  # none is promised: one is asked for
        ({"gpu": gpu()}, 12, 12, 2),
        ({"gpu": gpu(min_workers=1), "other": gpu(4, "V100")}, None, 8, 1),  # what is never started does not mix
    ],
)
def test_the_file_s_promise_or_what_is_asked(types: Any, wanted: int | None, num_gpus: int, nodes: int) -> None:
    target = awaited(gpu_types(config(**types)), wanted)
    assert target is not None
    assert (target.num_gpus, len(target.bundles)) == (num_gpus, nodes)
    assert target.bundles[0] == {"GPU": 8}


def test_a_cluster_without_gpus_is_not_waited_for() -> None:
    assert awaited(gpu_types(config(cpu={"resources": {"CPU": 4}}, none=gpu(max_workers=0))), None) is None
    assert awaited(gpu_types({}), 4) is None


def test_unlike_gpus_and_too_many_are_refused() -> None:
    mixed = config(one=gpu(min_workers=1), two=gpu(8, "V100", min_workers=1))
    with pytest.raises(InputError, match=r"one and two .* unlike GPUs"):
        awaited(gpu_types(mixed), None)
    with pytest.raises(InputError, match="64 devices are asked for, the cluster file allows 32"):
        awaited(gpu_types(config(gpu=gpu())), 64)


class TestWait:
    target = Awaited(num_gpus=16, per_node=8, node_types="gpu")

    def run(self, limit_s: float, arrivals: dict[float, int]) -> float:
        """Waits while the GPUs there follow `arrivals` (second: number); the second it ended."""
        now = [0.0]

        def live() -> int:
            return max(number for second, number in arrivals.items() if second <= now[0])

        def sleep(seconds: float) -> None:
            now[0] += seconds

        wait(self.target, limit_s, live=live, told=lambda: "1 launching", clock=lambda: now[0], sleep=sleep)
        return now[0]

    def test_it_says_what_it_waits_for_and_goes_on_when_all_are_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(1200, {0: 0, 100: 8, 200: 16}) == 200
        said = capsys.readouterr().err
        assert "Waiting for 2 nodes of type gpu: 0 of 16 GPUs are there (1 launching)" in said
        assert "8 of 16" in said and "16 GPUs came after 3 min 20 s" in said
        assert said.count("\n") == 5  # at 0, 60, 100 (another number), 160, and the end

    def test_it_is_the_cluster_s_fault_when_they_do_not_come(self) -> None:
        with pytest.raises(ClusterError, match=r"8 of 16 GPUs are there .* after 50 s"):
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
