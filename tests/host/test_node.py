"""A node's facts: processes killed for memory, under both versions of control groups; missing bytecode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.host.node import available_memory_bytes, is_of_this_node, memory_bytes, oom_kills


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/ray/job\n", "sys/fs/cgroup/ray/job/memory.events"),
        ("0::/../host/path\n", "sys/fs/cgroup/memory.events"),
        ("9:cpu:/other\n4:memory:/ray\n0::/\n", "sys/fs/cgroup/memory/ray/memory.oom_control"),
        ("4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.oom_control"),
    ],
)
def test_the_count_of_the_own_group_is_found(tmp_path: Path, groups: str, file: str) -> None:
    for path, text in (("proc/self/cgroup", groups), (file, "low 0\noom 9\noom_kill 3\noom_group_kill 0\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert oom_kills(tmp_path) == 3


MIB = 2**20


def test_without_control_groups_there_is_no_count(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0


def test_the_count_of_this_machine_can_be_read() -> None:
    assert oom_kills() >= 0


@pytest.mark.parametrize(
    ("visible", "ours"),
    [(None, [0, 1]), ("1", [1]), ("0,1", [0, 1]), ("GPU-bb", [1]), ("", []), ("-1", []), ("3", [])],
)
def test_only_the_gpus_that_a_node_gave_to_ray_must_be_free(
    visible: str | None, ours: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    uuids = ["GPU-aa11-22", "GPU-bb33-44"]
    assert [index for index, uuid in enumerate(uuids) if is_of_this_node(index, uuid)] == ours


def test_packages_without_bytecode_are_found_where_python_writes_none(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("")

    def shown(**environment: str) -> str:
        ask = "from trainers.host.node import uncompiled; print(uncompiled().get('ray', ''))"
        path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return subprocess.check_output(
            [sys.executable, "-c", ask], env=env | environment | {"PYTHONPATH": path}, text=True
        ).strip()

    assert shown() == ""  # Python will write it
    assert shown(PYTHONDONTWRITEBYTECODE="1") == str(tmp_path)
    subprocess.check_call([sys.executable, "-m", "compileall", "-q", tmp_path])
    assert shown(PYTHONDONTWRITEBYTECODE="1") == ""  # what the sentence says has mended it


@pytest.mark.parametrize(
    ("group", "files", "available_mib"),
    [
        ("0::/job", {"job/memory.max": "max", "job/memory.current": "1"}, 900),
        ("0::/job", {"job/memory.max": 500 * MIB, "job/memory.current": 450 * MIB, "job/memory.stat": ""}, 50),
        (
            "0::/slurm/job/step",  # whose limit is the job's
            {
                "slurm/job/step/memory.max": "max",
                "slurm/job/memory.max": 500 * MIB,
                "slurm/job/memory.current": 450 * MIB,
                "slurm/job/memory.stat": "",
            },
            50,
        ),
        (
            "0::/host/pod",  # which a container sees as its root
            {"memory.max": 500 * MIB, "memory.current": 450 * MIB, "memory.stat": f"inactive_file {20 * MIB}"},
            70,
        ),
        (
            "4:memory:/job",
            {
                "memory/job/memory.limit_in_bytes": 500 * MIB,
                "memory/job/memory.usage_in_bytes": 600 * MIB,
                "memory/job/memory.stat": f"total_inactive_file {10 * MIB}",
            },
            0,
        ),
    ],
)
def test_a_limit_of_the_control_group_counts_as_the_memory_of_the_host(
    group: str, files: dict[str, object], available_mib: int, tmp_path: Path
):
    for path, text in {
        "proc/self/cgroup": group,
        "proc/meminfo": f"MemFree: 1 kB\nMemAvailable:  {900 * 1024} kB\n",
        **{f"sys/fs/cgroup/{path}": text for path, text in files.items()},
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    assert available_memory_bytes(tmp_path) == available_mib * MIB


@pytest.mark.parametrize("limited", ["", "slurm/", "slurm/job/", "slurm/job/step/"])
def test_the_least_limit_of_the_groups_around_a_process_is_its_memory(limited: str, tmp_path: Path):
    (tmp_path / "sys/fs/cgroup/slurm/job/step").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job/step\n")
    assert memory_bytes(tmp_path) > 64 * MIB
    (tmp_path / f"sys/fs/cgroup/{limited}memory.max").write_text(f"{64 * MIB}\n")
    assert memory_bytes(tmp_path) == 64 * MIB


def test_memory_of_an_unknown_system_is_unknown(tmp_path: Path):
    assert available_memory_bytes(tmp_path) is None
    assert (available_memory_bytes() or 0) > 0
