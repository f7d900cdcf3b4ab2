"""`--dry-run` on this machine: what would run, without a Ray."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from platform.cluster import nodes

ROOT = Path(__file__).parents[3]
DRY_RUN = """
import sys
import platform.search.__main__ as search
code = search.main(sys.argv[1:])
assert "ray" not in sys.modules, "Ray was imported"
sys.exit(code)
"""


def dry_run(tmp_path: Path, *options: str) -> str:
    command = [sys.executable, "-c", DRY_RUN, "gpt2", "--dry-run", "--studies", str(tmp_path), *options]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "RAY_TMPDIR": str(tmp_path)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def test_it_says_what_would_run_without_a_ray(tmp_path: Path) -> None:
    printed = dry_run(tmp_path, "--time-budget", "10s")
    assert " GiB, held to 0.24): gpt2-miniature" in printed, "the miniature's memory cap"
    assert "would run  FSDP2 stage" in printed and "device seconds (estimated)" in printed
    assert "The budget ends it after 10 s (--time-budget)." in printed
    assert list(tmp_path.glob("gpt2*")) == []


def test_where_nothing_can_run_it_says_so_and_ends_with_exit_code_1(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        dry_run(tmp_path, "--set", "attention=flash4", "--set", "micro_batch=1")
    assert raised.value.returncode == 1
    first, *_, last = raised.value.output.splitlines()
    assert first.startswith("Space gpt2") and last == "Nothing would run: every batch point is skipped (2)."


def test_as_an_object_for_each_number_of_devices(tmp_path: Path) -> None:
    on_one, two = map(json.loads, dry_run(tmp_path, "--json", "--gpus", "1,2", "--gpu-s", "1m").splitlines())
    assert (on_one["cluster"]["devices_per_node"], two["cluster"]["devices_per_node"]) == (1, 2)
    assert on_one["would_run"] and all(trial["layout"]["dp_shard"] in (1, 2) for trial in two["would_run"])
    assert two["estimated_device_s_at_most"] == 2 * two["estimated_s_at_most"] > 0
    assert two["budget_s"] is not None and {"layout", "micro_batches", "recipe"} == set(two["would_run"][0])


@pytest.mark.parametrize(("visible", "count"), [(None, 4), ("0,2", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4)])
def test_the_gpus_of_this_machine_are_those_that_a_process_may_use(
    visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nodes._visible_gpus() == count  # pyright: ignore[reportPrivateUsage]
