"""Ray's memory monitor kills a process for real, and the search's processes learn of it."""

import subprocess
import sys

import pytest

from tests.search.session import ENVIRONMENT, ROOT

MONITOR = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
"""Every host uses more than that."""
KILLED = """
import time, ray
from platform.cluster.connection import connected

with connected("local", cpu_workers=1):
    from trainers.memory_kills import MemoryKills

    @ray.remote(num_cpus=0, max_restarts=0)
    class Victim:
        def work(self):
            time.sleep(3600)

    kills = MemoryKills()
    try:
        ray.get(Victim.remote().work.remote(), timeout=120)
    except ray.exceptions.OutOfMemoryError:
        print(kills.since())
        print(repr(MemoryKills().since(wait_s=0)))
"""


@pytest.mark.ray
@pytest.mark.heavy
def test_the_memory_monitor_s_kills_since_a_moment_are_found() -> None:
    # The monitor takes the first process of all, which asks for the node's facts: it is started again meanwhile.
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, env=ENVIRONMENT | MONITOR, capture_output=True, text=True, timeout=400
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("process ") and " on node 127.0.0.1: " in first, done.stderr
    assert second == "''", "kills before the moment do not count"
