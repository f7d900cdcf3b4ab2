"""The processors near a device, from a made-up tree of the kernel's, and a real process that keeps to them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.host.near import keep_near

SHOWN = "import os,sys,pathlib; from trainers.host.near import keep_near; \
print(sorted(keep_near('d', pathlib.Path(sys.argv[1]))), sorted(os.sched_getaffinity(0)))"


def test_a_process_keeps_to_the_processors_that_are_near_its_device_and_its_own(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "local_cpulist").write_text(f"{mine[-1]},{mine[-1] + 1000}-{mine[-1] + 1001}\n")
    shown = subprocess.run(
        [sys.executable, "-c", SHOWN, str(tmp_path)], check=True, capture_output=True, text=True
    ).stdout
    assert shown.split("] ")[0] == f"[{mine[-1]}" and shown.split("] ")[1].strip() == f"[{mine[-1]}]"


@pytest.mark.parametrize("text", ["", "4000-4001", "what"])
def test_nothing_changes_where_the_host_says_nothing_of_use(tmp_path: Path, text: str) -> None:
    before = os.sched_getaffinity(0)
    assert keep_near("d", tmp_path) == frozenset()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "local_cpulist").write_text(text)
    assert keep_near("d", tmp_path) == frozenset() and os.sched_getaffinity(0) == before
