"""Ray's memory monitor kills a process for real, and the search's processes learn of it."""

import subprocess
import sys

import pytest

from tests.whole_searches.session import ENVIRONMENT, ROOT

MONITOR = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100", "RAY_AUTH_MODE": "disabled"}
"""Settings of Ray's memory monitor, with a share of memory as the threshold that every host exceeds."""
KILLED = """
import time, ray

ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
from trainers.host.memory_kills import MemoryKills

@ray.remote(num_cpus=0)
class Victim:
    def work(self):
        time.sleep(3600)

kills = MemoryKills()
try:
    ray.get(Victim.remote().work.remote(), timeout=120)
except ray.exceptions.OutOfMemoryError:
    print(kills.since())
    print(MemoryKills().since(wait_s=0) or "nobody")
"""


@pytest.mark.ray
@pytest.mark.heavy
def test_the_memory_monitor_s_kills_since_a_moment_are_found() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, env=ENVIRONMENT | MONITOR, capture_output=True, text=True, timeout=400
    )
    assert completed.returncode == 0, completed.stderr
    first, second = completed.stdout.splitlines()
    assert first.startswith("process ") and " killed due to the node running low on memory" in first
    assert second == "nobody", "kills before the moment do not count"
